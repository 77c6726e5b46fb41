//! Responses have the format of HAProxy 2.6.

use podops_api::ids::Uid;
use serde_json::json;

use super::{
    response::{InvalidResponse, Servers},
    *,
};
use Traffic::{Absent, Serving};

const COLUMNS: &str = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr srv_agent_addr srv_agent_port";
const FIELDS: &str = "# pxname,svname,qcur,qmax,scur,smax,slim,stot,";

fn in_flight(count: u64) -> Traffic {
    Traffic::Draining(InFlight::Count(count))
}

/// Parses a response with these servers: address, operational state, administrative state,
/// sessions.
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

fn member(address: &str, traffic: DesiredTraffic) -> DesiredMember {
    DesiredMember {
        name: address.into(),
        uid: address.into(),
        addresses: vec![address.parse().unwrap()],
        traffic,
    }
}

fn params() -> Params {
    let params = json!({ "instances": ["tcp://127.0.0.1:1"], "backend": "web", "port": 8080 });
    serde_json::from_value(params).unwrap()
}

/// Returns the commands for these servers and Pods, joined by semicolons, without their prefix.
fn sent(servers: &[(&str, u32, u32, u64)], pods: &[DesiredMember]) -> String {
    commands(&slots(servers), &params(), pods).commands.join("; ").replace("set server web/", "")
}

/// An unused slot: in maintenance, by configuration and currently.
const EMPTY: (&str, u32, u32, u64) = ("127.0.0.1", 0, 5, 0);

#[test]
fn a_pod_gets_a_free_slot_and_is_drained_out_of_it() {
    let on = member("10.0.0.1", DesiredTraffic::Serve);
    let off = member("10.0.0.1", DesiredTraffic::Off);
    assert_eq!(
        sent(&[EMPTY], std::slice::from_ref(&on)),
        "web0 addr 10.0.0.1 port 8080; web0 state ready"
    );
    // The bit for maintenance by configuration stays set; it has no effect once the server is
    // ready.
    let serves = ("10.0.0.1", 2, 4, 3);
    assert_eq!(sent(&[serves], std::slice::from_ref(&on)), "");
    assert_eq!(sent(&[serves], std::slice::from_ref(&off)), "web0 state drain");
    assert_eq!(sent(&[("10.0.0.1", 2, 12, 3)], std::slice::from_ref(&off)), "");
    assert_eq!(sent(&[("10.0.0.1", 2, 12, 0)], std::slice::from_ref(&off)), "web0 state maint");
    assert_eq!(sent(&[("10.0.0.1", 2, 12, 3)], &[on]), "web0 state ready");
    assert_eq!(sent(&[EMPTY], &[off]), "");
}

#[test]
fn a_slot_with_sessions_or_another_pod_is_not_reused() {
    let busy = ("10.0.0.9", 0, 1, 2);
    let assigned = ("10.0.0.2", 0, 5, 0);
    let pods = [member("10.0.0.1", DesiredTraffic::Serve), member("10.0.0.2", DesiredTraffic::Off)];
    assert_eq!(sent(&[busy, assigned], &pods), "");
    assert_eq!(
        sent(&[busy, assigned, EMPTY], &pods),
        "web2 addr 10.0.0.1 port 8080; web2 state ready"
    );
    assert!(commands(&slots(&[busy, assigned]), &params(), &pods).is_full);
    // A slot without a member is drained like any other.
    assert_eq!(sent(&[("10.0.0.7", 2, 4, 1)], &[]), "web0 state drain");
    assert_eq!(sent(&[("10.0.0.7", 2, 12, 1)], &[]), "");
    assert_eq!(sent(&[("10.0.0.7", 2, 12, 0)], &[]), "web0 state maint");
}

#[test]
fn a_pod_in_two_slots_keeps_one_and_has_traffic_in_both() {
    let twice = [("10.0.0.1", 0, 1, 0), ("10.0.0.1", 2, 4, 2)];
    assert_eq!(sent(&twice, &[member("10.0.0.1", DesiredTraffic::Serve)]), "");
    let twice = [("10.0.0.1", 2, 4, 1), ("10.0.0.1", 2, 4, 2)];
    assert_eq!(sent(&twice, &[member("10.0.0.1", DesiredTraffic::Serve)]), "web1 state drain");
    let off = member("10.0.0.1", DesiredTraffic::Off);
    // A slot at the previous port counts too.
    let other_port = Params { port: 8081, ..params() };
    let previous = slots(&[("10.0.0.1", 2, 12, 3)]);
    assert_eq!(
        commands(&previous, &other_port, std::slice::from_ref(&off)).commands,
        Vec::<String>::new()
    );
    assert_eq!(traffic(&previous, &off), in_flight(3));
    assert_eq!(sent(&twice, std::slice::from_ref(&off)), "web0 state drain; web1 state drain");
    let half = [("10.0.0.1", 2, 12, 0), ("10.0.0.1", 2, 4, 0)];
    assert_eq!(traffic(&slots(&half), &off), Serving);
}

#[test]
fn a_reused_address_belongs_to_the_pod_that_should_serve() {
    let old = DesiredMember { uid: "old".into(), ..member("10.0.0.1", DesiredTraffic::Off) };
    let pods = [old, member("10.0.0.1", DesiredTraffic::Serve)];
    assert_eq!(sent(&[("10.0.0.1", 2, 4, 1)], &pods), "");
}

#[test]
fn only_allowed_instances_and_valid_backend_names_are_accepted() {
    let allowed = ["shop/tcp://10.0.0.5:9999/web", "*/unix:///run/shared/*"];
    let allowed = allowed.map(ToOwned::to_owned);
    let error = |namespace: &str, instance: &str, backend: &str| {
        let params = json!({ "instances": [instance], "backend": backend, "port": 8080 });
        let employer = Employer { namespace: namespace.to_owned(), params, ..Employer::default() };
        Params::read(&employer, &allowed).err().map(|error| error.to_string())
    };
    assert_eq!(error("shop", "tcp://10.0.0.5:9999", "web"), None);
    assert_eq!(error("any", "unix:///run/shared/a.sock", "web"), None);
    for (namespace, instance) in [
        ("other", "tcp://10.0.0.5:9999"),
        ("shop", "tcp://10.0.0.5:99990"),
        ("shop", "tcp://10.0.0.5:09999"),
        ("shop", "tcp://169.254.169.254:80"),
        ("any", "unix:///run/other.sock"),
    ] {
        assert!(error(namespace, instance, "web").is_some(), "{namespace} {instance}");
    }
    // A backend of another team, or a static one.
    assert!(error("shop", "tcp://10.0.0.5:9999", "other").is_some());
    for backend in ["web;disable frontend f", "web\nshow info", "", "a b"] {
        assert!(error("shop", "tcp://10.0.0.5:9999", backend).is_some(), "{backend:?}");
    }
}

#[test]
fn observed_traffic_follows_server_state_and_sessions() {
    let observed = |server| traffic(&slots(&[server]), &member("10.0.0.1", DesiredTraffic::Off));
    assert_eq!(observed(("10.0.0.1", 2, 4, 3)), Serving);
    assert_eq!(observed(("10.0.0.1", 0, 4, 3)), Traffic::Unhealthy);
    assert_eq!(observed(("10.0.0.1", 2, 12, 3)), in_flight(3));
    assert_eq!(observed(("10.0.0.1", 0, 5, 2)), in_flight(2));
    assert_eq!(observed(("10.0.0.1", 0, 5, 0)), Absent);
    assert_eq!(observed(("10.0.0.2", 2, 4, 3)), Absent);
}

#[test]
fn a_pod_has_traffic_if_any_instance_sends_it_traffic() {
    let merged = |first, second| {
        let mut observed = TrafficByPod::new();
        for traffic in [first, second] {
            merge(&mut observed, TrafficByPod::from([("10.0.0.1".into(), traffic)]));
        }
        observed[&Uid::from("10.0.0.1")]
    };
    assert_eq!(merged(Serving, Serving), Serving);
    // Traffic at either instance blocks the Pod's operation.
    assert_eq!(merged(Serving, Absent), Serving);
    assert_eq!(merged(Absent, Serving), Serving);
    assert_eq!(merged(Traffic::Unhealthy, in_flight(1)), Traffic::Unhealthy);
    assert_eq!(merged(in_flight(1), in_flight(2)), in_flight(3));
    assert_eq!(merged(Absent, in_flight(2)), in_flight(2));
    assert_eq!(merged(Absent, Absent), Absent);
}

#[test]
fn an_unexpected_response_is_reported_and_truncated() {
    let error = |response: &str| Servers::read(response, "web").unwrap_err().to_string();
    assert_eq!(
        error("Can't find backend.\n\n"),
        r#"backend web: unexpected response "Can't find backend.""#
    );
    assert!(error(&"x".repeat(9999)).len() < 200);
    let states = format!("1\n{COLUMNS}\n");
    assert_eq!(error(&format!("{states}\n")), "backend web has no servers");
    assert_eq!(error(&states), "response is truncated");
    let states = format!("{states}3 web 1 web1 10.0.0.1 2 4 1 1 0 1 0 0 8 0 0 0 - 8080 - 0\n\n");
    let servers = Servers::read(&states, "web").unwrap();
    let error = |statistics: &str| servers.slots(statistics).unwrap_err().to_string();
    assert_eq!(error(&format!("{FIELDS}\n\n")), "statistics lack server web1");
    assert_eq!(error(&format!("{FIELDS}\n")), InvalidResponse::Truncated.to_string());
    assert_eq!(error("no\n\n"), "statistics lack svname or scur");
    let invalid = format!("{FIELDS}\nweb,web1,0,0,many,\n\n");
    assert_eq!(error(&invalid), "statistics: invalid scur");
}
