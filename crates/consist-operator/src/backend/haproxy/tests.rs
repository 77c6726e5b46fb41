//! HAProxy's answers as version 2.6 writes them.

use serde_json::json;

use super::*;
use Traffic::{Absent, Draining, Serving};

const COLUMNS: &str = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr srv_agent_addr srv_agent_port";
const FIELDS: &str = "# pxname,svname,qcur,qmax,scur,smax,slim,stot,";

/// Servers as `<address> <operational state> <administrative state> <sessions>`.
fn slots(servers: &[(&str, u32, u32, u64)]) -> Vec<Slot> {
    let state = |(at, (address, running, admin, _)): (usize, &(&str, u32, u32, u64))| {
        format!("3 web {at} web{at} {address} {running} {admin} 1 1 0 1 0 0 8 0 0 0 - 8080 - 0\n")
    };
    let count = |(at, server): (usize, &(&str, u32, u32, u64))| {
        format!("web,web{at},0,0,{},9,,99,\n", server.3)
    };
    let lines = servers.iter().enumerate();
    let states: String = lines.clone().map(state).collect();
    let counts: String = lines.map(count).collect();
    let states = format!("1\n{COLUMNS}\n{states}\n");
    let servers = Servers::read(&states, "web").unwrap();
    servers.slots(&format!("{FIELDS}\n{counts}\n")).unwrap()
}

fn wanted(address: &str, want: Want) -> Wanted {
    Wanted {
        name: address.to_owned(),
        uid: address.to_owned(),
        addresses: vec![address.parse().unwrap()],
        want,
    }
}

fn params() -> Params {
    let params = json!({ "instances": ["tcp://127.0.0.1:1"], "backend": "web", "port": 8080 });
    serde_json::from_value(params).unwrap()
}

fn said(servers: &[(&str, u32, u32, u64)], pods: &[Wanted]) -> String {
    commands(&slots(servers), &params(), pods).said.join("; ").replace("set server web/", "")
}

/// Never used; in maintenance, as configured and as is.
const EMPTY: (&str, u32, u32, u64) = ("127.0.0.1", 0, 5, 0);

#[test]
fn a_pod_gets_a_free_slot_and_is_drained_out_of_it() {
    let (on, off) = (wanted("10.0.0.1", Want::Serve), wanted("10.0.0.1", Want::Off));
    assert_eq!(
        said(&[EMPTY], std::slice::from_ref(&on)),
        "web0 addr 10.0.0.1 port 8080; web0 state ready"
    );
    // That it was disabled by configuration stays written, and means nothing once it is ready.
    let serves = ("10.0.0.1", 2, 4, 3);
    assert_eq!(said(&[serves], std::slice::from_ref(&on)), "");
    assert_eq!(said(&[serves], std::slice::from_ref(&off)), "web0 state drain");
    assert_eq!(said(&[("10.0.0.1", 2, 12, 3)], std::slice::from_ref(&off)), "");
    assert_eq!(said(&[("10.0.0.1", 2, 12, 0)], std::slice::from_ref(&off)), "web0 state maint");
    assert_eq!(said(&[("10.0.0.1", 2, 12, 3)], &[on]), "web0 state ready");
    assert_eq!(said(&[EMPTY], &[off]), "");
}

#[test]
fn nobody_gets_a_slot_that_has_sessions_or_is_somebody_elses() {
    let busy = ("10.0.0.9", 0, 1, 2);
    let mine = ("10.0.0.2", 0, 5, 0);
    let pods = [wanted("10.0.0.1", Want::Serve), wanted("10.0.0.2", Want::Off)];
    assert_eq!(said(&[busy, mine], &pods), "");
    assert_eq!(said(&[busy, mine, EMPTY], &pods), "web2 addr 10.0.0.1 port 8080; web2 state ready");
    assert!(commands(&slots(&[busy, mine]), &params(), &pods).full);
    // One that nobody wants is drained like any other.
    assert_eq!(said(&[("10.0.0.7", 2, 4, 1)], &[]), "web0 state drain");
    assert_eq!(said(&[("10.0.0.7", 2, 12, 1)], &[]), "");
    assert_eq!(said(&[("10.0.0.7", 2, 12, 0)], &[]), "web0 state maint");
}

#[test]
fn a_pod_in_two_slots_keeps_one_and_has_traffic_in_both() {
    let twice = [("10.0.0.1", 0, 1, 0), ("10.0.0.1", 2, 4, 2)];
    assert_eq!(said(&twice, &[wanted("10.0.0.1", Want::Serve)]), "");
    let twice = [("10.0.0.1", 2, 4, 1), ("10.0.0.1", 2, 4, 2)];
    assert_eq!(said(&twice, &[wanted("10.0.0.1", Want::Serve)]), "web1 state drain");
    let off = wanted("10.0.0.1", Want::Off);
    // What is left at the port that was named before counts too.
    let elsewhere = Params { port: 8081, ..params() };
    let before = slots(&[("10.0.0.1", 2, 12, 3)]);
    assert_eq!(
        commands(&before, &elsewhere, std::slice::from_ref(&off)).said,
        Vec::<String>::new()
    );
    assert_eq!(traffic(&before, &off), Draining(Some(3)));
    assert_eq!(said(&twice, std::slice::from_ref(&off)), "web0 state drain; web1 state drain");
    let half = [("10.0.0.1", 2, 12, 0), ("10.0.0.1", 2, 4, 0)];
    assert_eq!(traffic(&slots(&half), &off), Serving);
}

#[test]
fn an_address_that_was_passed_on_is_its_new_pods() {
    let old = Wanted { uid: "old".to_owned(), ..wanted("10.0.0.1", Want::Off) };
    let pods = [old, wanted("10.0.0.1", Want::Serve)];
    assert_eq!(said(&[("10.0.0.1", 2, 4, 1)], &pods), "");
}

#[test]
fn only_what_the_operator_was_told_of_is_driven_and_only_by_names() {
    let allowed = ["shop/tcp://10.0.0.5:9999", "*/unix:///run/shared/*"];
    let haproxy = Haproxy::new(allowed.map(ToOwned::to_owned).to_vec());
    let fault = |namespace: &str, instance: &str, backend: &str| {
        let params = json!({ "instances": [instance], "backend": backend, "port": 8080 });
        let employer = Employer { namespace: namespace.to_owned(), params, ..Employer::default() };
        haproxy.params(&employer).err().map(|fault| fault.to_string())
    };
    assert_eq!(fault("shop", "tcp://10.0.0.5:9999", "web"), None);
    assert_eq!(fault("any", "unix:///run/shared/a.sock", "web"), None);
    for (namespace, instance) in [
        ("other", "tcp://10.0.0.5:9999"),
        ("shop", "tcp://10.0.0.5:99990"),
        ("shop", "tcp://169.254.169.254:80"),
        ("any", "unix:///run/other.sock"),
    ] {
        assert!(fault(namespace, instance, "web").is_some(), "{namespace} {instance}");
    }
    for backend in ["web;disable frontend f", "web\nshow info", "", "a b"] {
        assert!(fault("shop", "tcp://10.0.0.5:9999", backend).is_some(), "{backend:?}");
    }
}

#[test]
fn what_is_seen_is_what_haproxy_counts() {
    let observed = |server| traffic(&slots(&[server]), &wanted("10.0.0.1", Want::Off));
    assert_eq!(observed(("10.0.0.1", 2, 4, 3)), Serving);
    assert_eq!(observed(("10.0.0.1", 0, 4, 3)), Traffic::Unhealthy);
    assert_eq!(observed(("10.0.0.1", 2, 12, 3)), Draining(Some(3)));
    assert_eq!(observed(("10.0.0.1", 0, 5, 2)), Draining(Some(2)));
    assert_eq!(observed(("10.0.0.1", 0, 5, 0)), Absent);
    assert_eq!(observed(("10.0.0.2", 2, 4, 3)), Absent);
}

#[test]
fn several_instances_serve_together_and_drain_each_for_itself() {
    let merged = |want, first, second| {
        let pods = [wanted("10.0.0.1", want)];
        let mut observed = TrafficByPod::new();
        for one in [first, second] {
            merge(&mut observed, TrafficByPod::from([("10.0.0.1".to_owned(), one)]), &pods);
        }
        observed["10.0.0.1"]
    };
    assert_eq!(merged(Want::Serve, Serving, Serving), Serving);
    // In either it has traffic, and is not to be touched.
    assert_eq!(merged(Want::Serve, Serving, Absent), Serving);
    assert_eq!(merged(Want::Serve, Absent, Serving), Serving);
    assert_eq!(merged(Want::Serve, Traffic::Unhealthy, Draining(Some(1))), Traffic::Unhealthy);
    assert_eq!(merged(Want::Off, Absent, Serving), Serving);
    assert_eq!(merged(Want::Off, Serving, Absent), Serving);
    assert_eq!(merged(Want::Off, Draining(Some(1)), Draining(Some(2))), Draining(Some(3)));
    assert_eq!(merged(Want::Off, Absent, Draining(Some(2))), Draining(Some(2)));
    assert_eq!(merged(Want::Off, Absent, Absent), Absent);
}

#[test]
fn an_answer_that_is_none_is_told_and_bounded() {
    let told = |answer: &str| Servers::read(answer, "web").err().unwrap();
    assert_eq!(told("Can't find backend.\n\n"), r#"web: "Can't find backend.""#);
    assert!(told(&"x".repeat(9999)).len() < 200);
    let states = format!("1\n{COLUMNS}\n");
    assert_eq!(told(&format!("{states}\n")), "web: it has no servers");
    assert_eq!(told(&states), CUT_OFF);
    let states = format!("{states}3 web 1 web1 10.0.0.1 2 4 1 1 0 1 0 0 8 0 0 0 - 8080 - 0\n\n");
    let servers = Servers::read(&states, "web").unwrap();
    assert_eq!(servers.slots(&format!("{FIELDS}\n\n")).unwrap_err(), "no statistics of web1");
    assert_eq!(servers.slots(&format!("{FIELDS}\n")).unwrap_err(), CUT_OFF);
    assert_eq!(servers.slots("no\n\n").unwrap_err(), "the statistics lack columns");
    let bad = format!("{FIELDS}\nweb,web1,0,0,many,\n\n");
    assert_eq!(servers.slots(&bad).unwrap_err(), "sessions are no number");
}
