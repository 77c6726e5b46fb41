//! Conformance checks: calls an adapter as consist-operator does, and returns a verdict per check.

mod failure;

use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use self::failure::{CheckResult, Failure};
use crate::{
    ABSENT, DRAINING, OFF, SERVE, SERVING, UNHEALTHY,
    client::{Client, Error},
    v1::{
        ApplyRequest, ApplyResponse, Employer, ForgetRequest, Member, ObserveRequest, Observed,
        Wanted,
    },
};

/// Interval between two calls while waiting for a state.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of members in the load check.
const MANY: u32 = 1000;
/// Maximum duration of the call in the load check.
const MANY_TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of the checks.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Parameters of the employer, JSON.
    pub params: String,
    /// Parameters of a second employer with separate traffic, JSON.
    pub other_params: Option<String>,
    /// Three addresses that traffic may be routed to.
    pub addresses: [String; 3],
    /// Time within which a desired state must be observed.
    pub within: Duration,
    /// Shell command that restarts the adapter without its state.
    pub restart: Option<String>,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The adapter conforms.
    Passed,
    /// The adapter does not conform, for this reason.
    Failed(String),
    /// The check was not run, for this reason.
    Skipped(String),
}

impl From<CheckResult> for Verdict {
    fn from(result: CheckResult) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(failure) => Self::Failed(format!("{:#}", anyhow::Error::new(failure))),
        }
    }
}

/// One check and its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Name of the check: the rule that it verifies.
    pub name: &'static str,
    /// Result of the check.
    pub verdict: Verdict,
}

impl Check {
    fn new(name: &'static str, verdict: impl Into<Verdict>) -> Self {
        Self { name, verdict: verdict.into() }
    }
}

/// Runs all checks in sequence.
pub async fn run(adapter: &Client, setup: &Setup) -> Vec<Check> {
    let one = Subject::new(adapter, setup, "one", &setup.params);
    let other =
        setup.other_params.as_ref().map(|params| Subject::new(adapter, setup, "other", params));
    let mut checks = vec![
        Check::new("the protocol version is supported", one.supports_the_version().await),
        Check::new("unknown members are Absent", one.unknown_members_are_absent().await),
        Check::new("enabled members become Serving", one.enables().await),
        Check::new("repeated apply changes nothing", one.apply_is_idempotent().await),
        Check::new("observe changes nothing", one.observe_is_read_only().await),
        Check::new("disabled members are drained and stay disabled", one.drains().await),
        Check::new(
            "repeated apply does not postpone a drain",
            one.does_not_postpone_a_drain().await,
        ),
        Check::new("outdated applies have no delayed effect", one.has_no_delayed_effect().await),
        Check::new("draining a member does not affect others", one.drains_one_of_two().await),
        Check::new("members missing from apply are drained", one.drains_missing_members().await),
        Check::new("smaller generations are ignored", one.ignores_smaller_generations().await),
        Check::new("members may share an address", one.allows_shared_addresses().await),
        Check::new(
            "members may have no address or only IPv6",
            one.allows_no_address_or_ipv6().await,
        ),
        Check::new("1,000 members are observed in one call", one.observes_many_members().await),
        Check::new("invalid parameters are rejected", one.rejects_invalid_params().await),
        Check::new("members of a deleted employer are drained", one.forgets().await),
    ];
    let isolated = match &other {
        Some(other) => one.is_isolated_from(other).await.into(),
        None => Verdict::Skipped("requires --other-params".to_owned()),
    };
    checks.push(Check::new("employers are isolated from each other", isolated));
    let restarted = match &setup.restart {
        Some(command) => one.recovers_after_a_restart(command).await.into(),
        None => Verdict::Skipped("requires --restart".to_owned()),
    };
    checks.push(Check::new("repeated apply restores the state after a restart", restarted));
    for subject in [Some(one), other].into_iter().flatten() {
        drop(subject.forget().await);
    }
    checks
}

/// Test employer of an adapter.
struct Subject<'a> {
    adapter: &'a Client,
    setup: &'a Setup,
    employer: Employer,
    generation: AtomicU64,
}

impl<'a> Subject<'a> {
    fn new(adapter: &'a Client, setup: &'a Setup, name: &str, params: &str) -> Self {
        let employer = Employer {
            kind: "Service".to_owned(),
            namespace: "conformance".to_owned(),
            name: name.to_owned(),
            uid: format!("conformance-{name}"),
            params: params.to_owned(),
        };
        #[allow(clippy::disallowed_methods, reason = "a generation that increases from run to run")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let initial = u64::try_from(since.as_millis()).unwrap_or_default();
        Self { adapter, setup, employer, generation: AtomicU64::new(initial) }
    }

    /// Returns the member with this index, 0 to 2, and the address of the same index.
    fn member(&self, index: usize) -> Member {
        let name = format!("{}-{index}", self.employer.name);
        let address = self.setup.addresses.get(index).cloned();
        Member { uid: format!("uid-{name}"), name, addresses: address.into_iter().collect() }
    }

    async fn apply_as(
        &self,
        generation: u64,
        members: &[(&Member, &str)],
    ) -> Result<ApplyResponse, Error> {
        let members = members.iter().map(|(member, want)| Wanted {
            member: Some((*member).clone()),
            want: (*want).to_owned(),
        });
        let employer = Some(self.employer.clone());
        self.adapter.apply(ApplyRequest { employer, generation, members: members.collect() }).await
    }

    /// Applies a desired state with the next generation.
    async fn apply(&self, members: &[(&Member, &str)]) -> CheckResult {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        self.apply_as(generation, members).await.map(drop).map_err(Failure::apply)
    }

    async fn observe(&self, members: &[&Member]) -> Result<BTreeMap<String, Observed>, Failure> {
        let request = ObserveRequest {
            employer: Some(self.employer.clone()),
            members: members.iter().map(|member| (*member).clone()).collect(),
        };
        let response = self.adapter.observe(request).await.map_err(Failure::observe)?;
        let by_uid: BTreeMap<String, Observed> =
            response.members.into_iter().map(|member| (member.uid.clone(), member)).collect();
        for member in members {
            let observed = by_uid
                .get(&member.uid)
                .ok_or_else(|| Failure::MissingMember { uid: member.uid.clone() })?;
            if ![SERVING, UNHEALTHY, DRAINING, ABSENT].contains(&observed.state.as_str()) {
                return Err(Failure::InvalidState { state: observed.state.clone() });
            }
        }
        Ok(by_uid)
    }

    async fn observe_one(&self, member: &Member) -> Result<Observed, Failure> {
        let mut by_uid = self.observe(&[member]).await?;
        Ok(by_uid.remove(&member.uid).unwrap_or_default())
    }

    async fn state(&self, member: &Member) -> Result<String, Failure> {
        Ok(self.observe_one(member).await?.state)
    }

    /// Checks that a member is in one of these states.
    async fn expect(
        &self,
        member: &Member,
        states: &[&str],
        failure: impl FnOnce(String) -> Failure,
    ) -> CheckResult {
        let state = self.state(member).await?;
        if states.contains(&state.as_str()) { Ok(()) } else { Err(failure(state)) }
    }

    /// Waits until a member is observed in a state.
    async fn wait_for(&self, member: &Member, state: &str) -> CheckResult {
        let end = Instant::now() + self.setup.within;
        loop {
            let observed = self.state(member).await?;
            if observed == state {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Failure::StateNotReached {
                    member: member.name.clone(),
                    observed,
                    expected: state.to_owned(),
                    within: self.setup.within,
                });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a member has no traffic.
    async fn wait_until_drained(&self, member: &Member) -> CheckResult {
        let end = Instant::now() + self.setup.within;
        let mut draining = false;
        loop {
            let observed = self.observe_one(member).await?;
            match (observed.state.as_str(), observed.in_flight) {
                (ABSENT, _) | (DRAINING, Some(0)) => return Ok(()),
                (DRAINING, _) => draining = true,
                (SERVING | UNHEALTHY, _) if draining => {
                    return Err(Failure::state(member, observed.state, "after Draining"));
                }
                _ => {}
            }
            if Instant::now() > end {
                return Err(Failure::NotDrained {
                    member: member.name.clone(),
                    state: observed.state,
                    within: self.setup.within,
                });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn forget(&self) -> Result<(), Error> {
        let request = ForgetRequest { employer: Some(self.employer.clone()) };
        self.adapter.forget(request).await.map(drop)
    }

    async fn supports_the_version(&self) -> CheckResult {
        let response = self.adapter.handshake("consist-conformance").await;
        let name = response.map_err(Failure::handshake)?.name;
        if name.is_empty() { Err(Failure::EmptyName) } else { Ok(()) }
    }

    async fn unknown_members_are_absent(&self) -> CheckResult {
        let unknown =
            Member { uid: "unknown".to_owned(), name: "unknown".to_owned(), ..self.member(2) };
        self.expect(&unknown, &[ABSENT], Failure::UnknownMember).await
    }

    async fn enables(&self) -> CheckResult {
        let member = self.member(0);
        self.apply(&[(&member, SERVE)]).await?;
        self.wait_for(&member, SERVING).await
    }

    async fn apply_is_idempotent(&self) -> CheckResult {
        let member = self.member(0);
        self.enables().await?;
        let generation = self.generation.load(Ordering::Relaxed);
        for _ in 0..3 {
            let repeated = self.apply_as(generation, &[(&member, SERVE)]).await;
            repeated.map_err(Failure::apply)?;
            let state = self.state(&member).await?;
            if state != SERVING {
                return Err(Failure::state(&member, state, "after a repeated apply"));
            }
        }
        Ok(())
    }

    async fn observe_is_read_only(&self) -> CheckResult {
        let member = self.member(0);
        let other = self.member(1);
        self.enables().await?;
        for _ in 0..3 {
            self.observe(&[&other]).await?;
            self.observe(&[]).await?;
        }
        self.expect(&member, &[SERVING], |state| Failure::state(&member, state, "after observe"))
            .await
    }

    async fn drains(&self) -> CheckResult {
        let member = self.member(0);
        self.enables().await?;
        self.apply(&[(&member, OFF)]).await?;
        self.wait_until_drained(&member).await?;
        // The member must not return to service without another apply.
        sleep(POLL_INTERVAL * 5).await;
        self.expect(&member, &[ABSENT, DRAINING], |state| {
            Failure::state(&member, state, "again after its drain")
        })
        .await
    }

    async fn does_not_postpone_a_drain(&self) -> CheckResult {
        let member = self.member(0);
        self.enables().await?;
        self.disable_until(&member, |observed| {
            [ABSENT, DRAINING].contains(&observed.state.as_str())
        })
        .await
    }

    /// Checks for adapters with slow drains that a pending drain does not affect members that are
    /// enabled later: the same member, or another one in its place.
    async fn has_no_delayed_effect(&self) -> CheckResult {
        let first = self.member(0);
        let second = self.member(1);
        self.enables().await?;
        let started = Instant::now();
        // Absent, or drained in five consecutive observations.
        let mut drained_count = 0;
        self.disable_until(&first, |observed| {
            let drained = observed.state == DRAINING && observed.in_flight == Some(0);
            drained_count = if drained { drained_count + 1 } else { 0 };
            observed.state == ABSENT || drained_count == 5
        })
        .await?;
        let drain_time = started.elapsed();
        self.stays_serving(&second, drain_time).await?;
        // Enabled again at once, before the drain takes effect.
        self.apply(&[(&second, OFF)]).await?;
        self.stays_serving(&second, drain_time).await
    }

    /// Enables a member, and checks that it stays Serving for a time.
    async fn stays_serving(&self, member: &Member, time: Duration) -> CheckResult {
        self.apply(&[(member, SERVE)]).await?;
        self.wait_for(member, SERVING).await?;
        let end = Instant::now() + time + POLL_INTERVAL * 5;
        while Instant::now() < end {
            self.expect(member, &[SERVING], |state| {
                Failure::state(member, state, "without a request")
            })
            .await?;
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Disables a member with repeated applies until it is observed as disabled.
    async fn disable_until(
        &self,
        member: &Member,
        mut is_off: impl FnMut(&Observed) -> bool,
    ) -> CheckResult {
        let end = Instant::now() + self.setup.within;
        loop {
            self.apply(&[(member, OFF)]).await?;
            let observed = self.observe_one(member).await?;
            if is_off(&observed) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Failure::state(member, observed.state, "while apply is repeated"));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn drains_one_of_two(&self) -> CheckResult {
        let first = self.member(0);
        let second = self.member(1);
        self.apply(&[(&first, SERVE), (&second, SERVE)]).await?;
        self.wait_for(&first, SERVING).await?;
        self.wait_for(&second, SERVING).await?;
        self.apply(&[(&first, OFF), (&second, SERVE)]).await?;
        self.wait_until_drained(&first).await?;
        self.expect(&second, &[SERVING], Failure::OtherMember).await
    }

    async fn drains_missing_members(&self) -> CheckResult {
        let first = self.member(0);
        let second = self.member(1);
        self.apply(&[(&first, SERVE), (&second, SERVE)]).await?;
        self.wait_for(&second, SERVING).await?;
        self.apply(&[(&first, SERVE)]).await?;
        self.wait_until_drained(&second).await?;
        self.wait_for(&first, SERVING).await
    }

    async fn ignores_smaller_generations(&self) -> CheckResult {
        let member = self.member(0);
        self.enables().await?;
        let outdated = self.generation.load(Ordering::Relaxed);
        self.apply(&[(&member, OFF)]).await?;
        self.wait_until_drained(&member).await?;
        // The adapter may reject or ignore it.
        drop(self.apply_as(outdated, &[(&member, SERVE)]).await);
        sleep(POLL_INTERVAL * 5).await;
        match self.state(&member).await?.as_str() {
            SERVING | UNHEALTHY => Err(Failure::SmallerGeneration),
            _ => Ok(()),
        }
    }

    async fn allows_shared_addresses(&self) -> CheckResult {
        let one = self.member(0);
        let duplicate = self.member(1);
        let duplicate = Member { addresses: one.addresses.clone(), ..duplicate };
        self.apply(&[(&one, SERVE), (&duplicate, OFF)]).await?;
        self.wait_for(&one, SERVING).await?;
        self.apply(&[(&one, OFF), (&duplicate, OFF)]).await?;
        self.wait_until_drained(&one).await?;
        self.wait_until_drained(&duplicate).await
    }

    async fn allows_no_address_or_ipv6(&self) -> CheckResult {
        let member = self.member(0);
        let no_ip = Member { addresses: Vec::new(), ..self.member(1) };
        let ipv6 = Member { addresses: vec!["fd00::7".to_owned()], ..self.member(2) };
        self.apply(&[(&member, SERVE), (&no_ip, SERVE), (&ipv6, OFF)]).await?;
        self.wait_for(&member, SERVING).await?;
        let by_uid = self.observe(&[&no_ip, &ipv6]).await?;
        match by_uid.get(&no_ip.uid).map(|observed| observed.state.as_str()) {
            Some(SERVING) => Err(Failure::ServingWithoutAddress),
            _ => Ok(()),
        }
    }

    async fn observes_many_members(&self) -> CheckResult {
        let many: Vec<Member> = (0..MANY).map(numbered_member).collect();
        let started = Instant::now();
        self.observe(&many.iter().collect::<Vec<_>>()).await?;
        match started.elapsed() {
            took if took > MANY_TIMEOUT => Err(Failure::Slow { took, limit: MANY_TIMEOUT }),
            _ => Ok(()),
        }
    }

    async fn rejects_invalid_params(&self) -> CheckResult {
        let employer = Employer { params: "{".to_owned(), ..self.employer.clone() };
        let request = ObserveRequest { employer: Some(employer), members: vec![self.member(0)] };
        match self.adapter.observe(request).await {
            Err(Error::Rejected(_)) => Ok(()),
            Err(source) => Err(Failure::NotRejected { source }),
            Ok(_) => Err(Failure::InvalidParamsAccepted),
        }
    }

    async fn forgets(&self) -> CheckResult {
        let member = self.member(0);
        self.enables().await?;
        self.forget().await.map_err(Failure::forget)?;
        self.wait_until_drained(&member).await?;
        self.forget().await.map_err(Failure::repeated_forget)
    }

    async fn is_isolated_from(&self, other: &Subject<'_>) -> CheckResult {
        let ours = self.member(0);
        let theirs = other.member(1);
        self.apply(&[(&ours, SERVE)]).await?;
        self.wait_for(&ours, SERVING).await?;
        other.apply(&[(&theirs, SERVE)]).await?;
        other.wait_for(&theirs, SERVING).await?;
        other.apply(&[(&theirs, OFF)]).await?;
        other.wait_until_drained(&theirs).await?;
        other.forget().await.map_err(Failure::forget)?;
        self.expect(&ours, &[SERVING], |state| {
            Failure::state(&ours, state, "after the other employer's forget")
        })
        .await
    }

    async fn recovers_after_a_restart(&self, command: &str) -> CheckResult {
        let member = self.member(0);
        self.enables().await?;
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).stdin(Stdio::null());
        let status = shell
            .status()
            .await
            .map_err(|source| Failure::RestartNotRun { command: command.to_owned(), source })?;
        if !status.success() {
            return Err(Failure::RestartFailed { command: command.to_owned(), status });
        }
        let end = Instant::now() + self.setup.within;
        while let Err(source) = self.adapter.handshake("consist-conformance").await {
            if Instant::now() > end {
                return Err(Failure::NotAvailable { source });
            }
            sleep(POLL_INTERVAL).await;
        }
        // The same generation again, not a new one.
        let generation = self.generation.load(Ordering::Relaxed);
        let repeated = self.apply_as(generation, &[(&member, SERVE)]).await;
        repeated.map_err(Failure::apply)?;
        self.wait_for(&member, SERVING).await?;
        self.apply(&[(&member, OFF)]).await?;
        self.wait_until_drained(&member).await
    }
}

/// Returns a member of the load check.
fn numbered_member(n: u32) -> Member {
    Member {
        uid: format!("many-{n}"),
        name: format!("many-{n}"),
        addresses: vec![format!("10.255.{}.{}", n / 250, n % 250 + 1)],
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn verdicts_contain_the_causes_of_failures() {
        let unreachable = || Error::Unreachable("Unavailable: closed".to_owned());
        let rejected = Error::Rejected("400 Bad Request: name".to_owned());
        let source = io::Error::from(io::ErrorKind::NotFound);
        for (failure, message) in [
            (Failure::apply(unreachable()), "apply: Unavailable: closed"),
            (
                Failure::repeated_forget(rejected),
                "repeated forget: rejected: 400 Bad Request: name",
            ),
            (
                Failure::NotAvailable { source: unreachable() },
                "not available after the restart: Unavailable: closed",
            ),
            (
                Failure::RestartNotRun { command: "restart".to_owned(), source },
                "restart: entity not found",
            ),
            (Failure::OtherMember("Absent".to_owned()), "the other member is Absent"),
        ] {
            assert_eq!(Verdict::from(Err(failure)), Verdict::Failed(message.to_owned()));
        }
    }
}
