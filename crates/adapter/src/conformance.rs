//! Finds out whether an adapter keeps the protocol, by speaking to it as consist-operator would.

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

use crate::{
    ABSENT, DRAINING, OFF, SERVE, SERVING, UNHEALTHY,
    client::{Client, Error},
    v1::{
        ApplyRequest, ApplyResponse, Employer, ForgetRequest, Member, ObserveRequest, Observed,
        Wanted,
    },
};

/// How often an adapter is asked while something is waited for.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// How many members are asked about at once, and within what time.
const MANY: u32 = 1000;
const MANY_WITHIN: Duration = Duration::from_secs(5);

/// What an adapter is tried with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What its users would tell it, as JSON.
    pub params: String,
    /// The same for another employer, whose traffic goes another way.
    pub other_params: Option<String>,
    /// Three addresses that its traffic may be sent to.
    pub addresses: [String; 3],
    /// How long what was wanted may take to be seen.
    pub within: Duration,
    /// A command that restarts it, with what it remembers lost; run by a shell.
    pub restart: Option<String>,
}

/// What came of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it has to be.
    Kept,
    /// It is not, for this reason.
    Broken(String),
    /// Nobody knows, for this reason.
    Unknown(String),
}

impl From<Kept> for Verdict {
    fn from(kept: Kept) -> Self {
        kept.map_or_else(Self::Broken, |()| Self::Kept)
    }
}

/// One check and its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What has to be so.
    pub what: &'static str,
    /// Whether it is.
    pub verdict: Verdict,
}

/// Tries everything, one after the other.
pub async fn run(adapter: &Client, setup: &Setup) -> Vec<Check> {
    let one = Subject::new(adapter, setup, "one", &setup.params);
    let other =
        setup.other_params.as_ref().map(|params| Subject::new(adapter, setup, "other", params));
    let mut checks = Vec::new();
    let mut note = |what: &'static str, kept: Result<(), String>| {
        checks.push(Check { what, verdict: kept.into() });
    };
    note("it speaks this version", one.speaks().await);
    note("whom it never heard of is absent", one.strangers_are_absent().await);
    note("whoever is to serve is seen to serve", one.serves().await);
    note("saying it again changes nothing", one.replays().await);
    note("to observe changes nothing", one.observing_is_harmless().await);
    note("who is off is drained, and does not serve again", one.drains().await);
    note("saying it again does not put it off", one.is_not_put_off().await);
    note("what was said before has no late effect", one.forgives().await);
    note("one that is off does not touch the others", one.drains_one_of_two().await);
    note("who is named no more gets no traffic", one.drops_who_is_left_out().await);
    note("what comes late is ignored", one.ignores_the_late().await);
    note("two members may have one address", one.shares_an_address().await);
    note("members may have no address, or only one of IPv6", one.takes_odd_addresses().await);
    note("a thousand members are one question", one.answers_for_many().await);
    note("parameters that make no sense are refused", one.refuses_nonsense().await);
    note("an employer that is gone sends no traffic", one.forgets().await);
    let skip = |why: &str| Verdict::Unknown(why.to_owned());
    let alone = match &other {
        Some(other) => one.leaves_others_alone(other).await.into(),
        None => skip("needs --other-params"),
    };
    checks.push(Check { what: "employers do not touch each other's members", verdict: alone });
    let restarted = match &setup.restart {
        Some(command) => one.survives(command).await.into(),
        None => skip("needs --restart"),
    };
    checks.push(Check { what: "a restart is made good by saying it again", verdict: restarted });
    for subject in [Some(one), other].into_iter().flatten() {
        drop(subject.forget().await);
    }
    checks
}

/// An employer that is played to an adapter.
struct Subject<'a> {
    adapter: &'a Client,
    setup: &'a Setup,
    employer: Employer,
    generation: AtomicU64,
}

type Kept = Result<(), String>;

impl<'a> Subject<'a> {
    fn new(adapter: &'a Client, setup: &'a Setup, name: &str, params: &str) -> Self {
        let employer = Employer {
            kind: "Service".to_owned(),
            namespace: "conformance".to_owned(),
            name: name.to_owned(),
            uid: format!("conformance-{name}"),
            params: params.to_owned(),
        };
        #[allow(clippy::disallowed_methods, reason = "a number that grows from run to run")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begin = u64::try_from(since.as_millis()).unwrap_or_default();
        Self { adapter, setup, employer, generation: AtomicU64::new(begin) }
    }

    fn member(&self, which: usize) -> Member {
        let name = format!("{}-{which}", self.employer.name);
        let address = self.setup.addresses.get(which).cloned();
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

    async fn apply(&self, members: &[(&Member, &str)]) -> Kept {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        self.apply_as(generation, members).await.map(drop).map_err(|e| format!("apply: {e}"))
    }

    async fn observe(&self, members: &[&Member]) -> Result<BTreeMap<String, Observed>, String> {
        let asked = ObserveRequest {
            employer: Some(self.employer.clone()),
            members: members.iter().map(|member| (*member).clone()).collect(),
        };
        let seen = self.adapter.observe(asked).await.map_err(|e| format!("observe: {e}"))?;
        let all: BTreeMap<String, Observed> =
            seen.members.into_iter().map(|seen| (seen.uid.clone(), seen)).collect();
        for member in members {
            let seen =
                all.get(&member.uid).ok_or(format!("{} was not answered for", member.uid))?;
            if ![SERVING, UNHEALTHY, DRAINING, ABSENT].contains(&seen.state.as_str()) {
                return Err(format!("{:?} is no state", seen.state));
            }
        }
        Ok(all)
    }

    async fn look(&self, member: &Member) -> Result<Observed, String> {
        let mut seen = self.observe(&[member]).await?;
        Ok(seen.remove(&member.uid).unwrap_or_default())
    }

    async fn state(&self, member: &Member) -> Result<String, String> {
        Ok(self.look(member).await?.state)
    }

    /// Looks whether a member is in one of these states.
    async fn is(
        &self,
        member: &Member,
        states: &[&str],
        otherwise: impl FnOnce(String) -> String,
    ) -> Kept {
        let state = self.state(member).await?;
        if states.contains(&state.as_str()) { Ok(()) } else { Err(otherwise(state)) }
    }

    /// Waits until a member is seen in a state.
    async fn until(&self, member: &Member, state: &str) -> Kept {
        let end = Instant::now() + self.setup.within;
        loop {
            let seen = self.state(member).await?;
            if seen == state {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!(
                    "{} is {seen}, not {state}, after {:?}",
                    member.name, self.setup.within
                ));
            }
            sleep(ASK_AGAIN).await;
        }
    }

    /// Waits until a member's traffic is over.
    async fn until_over(&self, member: &Member) -> Kept {
        let end = Instant::now() + self.setup.within;
        let mut left = false;
        loop {
            let seen = self.look(member).await?;
            match (seen.state.as_str(), seen.in_flight) {
                (ABSENT, _) | (DRAINING, Some(0)) => return Ok(()),
                (DRAINING, _) => left = true,
                (SERVING | UNHEALTHY, _) if left => {
                    return Err(format!("{} was draining, and is {}", member.name, seen.state));
                }
                _ => {}
            }
            if Instant::now() > end {
                return Err(format!(
                    "{} is {} after {:?}",
                    member.name, seen.state, self.setup.within
                ));
            }
            sleep(ASK_AGAIN).await;
        }
    }

    async fn forget(&self) -> Kept {
        let asked = ForgetRequest { employer: Some(self.employer.clone()) };
        self.adapter.forget(asked).await.map(drop).map_err(|e| format!("forget: {e}"))
    }

    async fn speaks(&self) -> Kept {
        let agreed = self.adapter.handshake("consist-conformance").await;
        let agreed = agreed.map_err(|e| format!("handshake: {e}"))?;
        if agreed.name.is_empty() { Err("it does not say its name".to_owned()) } else { Ok(()) }
    }

    async fn strangers_are_absent(&self) -> Kept {
        let stranger =
            Member { uid: "nobody".to_owned(), name: "nobody".to_owned(), ..self.member(2) };
        self.is(&stranger, &[ABSENT], |state| format!("it is {state}")).await
    }

    async fn serves(&self) -> Kept {
        let member = self.member(0);
        self.apply(&[(&member, SERVE)]).await?;
        self.until(&member, SERVING).await
    }

    async fn replays(&self) -> Kept {
        let member = self.member(0);
        self.serves().await?;
        let generation = self.generation.load(Ordering::Relaxed);
        for _ in 0..3 {
            let again = self.apply_as(generation, &[(&member, SERVE)]).await;
            again.map_err(|e| format!("apply: {e}"))?;
            let seen = self.state(&member).await?;
            if seen != SERVING {
                return Err(format!("it is {seen}"));
            }
        }
        Ok(())
    }

    async fn observing_is_harmless(&self) -> Kept {
        let (member, stranger) = (self.member(0), self.member(1));
        self.serves().await?;
        for _ in 0..3 {
            self.observe(&[&stranger]).await?;
            self.observe(&[]).await?;
        }
        self.is(&member, &[SERVING], |state| format!("it is {state}")).await
    }

    async fn drains(&self) -> Kept {
        let member = self.member(0);
        self.serves().await?;
        self.apply(&[(&member, OFF)]).await?;
        self.until_over(&member).await?;
        // Off is off: it does not come back by itself.
        sleep(ASK_AGAIN * 5).await;
        self.is(&member, &[ABSENT, DRAINING], |state| format!("it is {state} again")).await
    }

    async fn is_not_put_off(&self) -> Kept {
        let member = self.member(0);
        self.serves().await?;
        self.say_off_until(&member, |seen| [ABSENT, DRAINING].contains(&seen.state.as_str())).await
    }

    /// Where it takes long to take somebody off, what is still to come of it must not meet whoever serves by
    /// then: the same member, or the one that has its place.
    async fn forgives(&self) -> Kept {
        let (first, second) = (self.member(0), self.member(1));
        self.serves().await?;
        let began = Instant::now();
        // It is absent, or has drained for a while.
        let mut over = 0;
        let is_off = |seen: &Observed| {
            let drained = seen.state == DRAINING && seen.in_flight == Some(0);
            over = if drained { over + 1 } else { 0 };
            seen.state == ABSENT || over == 5
        };
        self.say_off_until(&first, is_off).await?;
        let took = began.elapsed();
        self.serves_on(&second, took).await?;
        // Taken back at once, before anything has come of it.
        self.apply(&[(&second, OFF)]).await?;
        self.serves_on(&second, took).await
    }

    /// Has a member serve, and sees it serve for a time.
    async fn serves_on(&self, member: &Member, time: Duration) -> Kept {
        self.apply(&[(member, SERVE)]).await?;
        self.until(member, SERVING).await?;
        let end = Instant::now() + time + ASK_AGAIN * 5;
        while Instant::now() < end {
            let otherwise = |state| format!("{} is {state} by itself", member.name);
            self.is(member, &[SERVING], otherwise).await?;
            sleep(ASK_AGAIN).await;
        }
        Ok(())
    }

    /// Says that a member is off, again and again, until it is seen so.
    async fn say_off_until(
        &self,
        member: &Member,
        mut is_off: impl FnMut(&Observed) -> bool,
    ) -> Kept {
        let end = Instant::now() + self.setup.within;
        loop {
            self.apply(&[(member, OFF)]).await?;
            let seen = self.look(member).await?;
            if is_off(&seen) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("{} is {} while it is said again", member.name, seen.state));
            }
            sleep(ASK_AGAIN).await;
        }
    }

    async fn drains_one_of_two(&self) -> Kept {
        let (first, second) = (self.member(0), self.member(1));
        self.apply(&[(&first, SERVE), (&second, SERVE)]).await?;
        self.until(&first, SERVING).await?;
        self.until(&second, SERVING).await?;
        self.apply(&[(&first, OFF), (&second, SERVE)]).await?;
        self.until_over(&first).await?;
        self.is(&second, &[SERVING], |state| format!("the other is {state}")).await
    }

    async fn drops_who_is_left_out(&self) -> Kept {
        let (first, second) = (self.member(0), self.member(1));
        self.apply(&[(&first, SERVE), (&second, SERVE)]).await?;
        self.until(&second, SERVING).await?;
        self.apply(&[(&first, SERVE)]).await?;
        self.until_over(&second).await?;
        self.until(&first, SERVING).await
    }

    async fn ignores_the_late(&self) -> Kept {
        let member = self.member(0);
        self.serves().await?;
        let late = self.generation.load(Ordering::Relaxed);
        self.apply(&[(&member, OFF)]).await?;
        self.until_over(&member).await?;
        // Whether it is refused or passed over is the adapter's choice.
        drop(self.apply_as(late, &[(&member, SERVE)]).await);
        sleep(ASK_AGAIN * 5).await;
        match self.state(&member).await?.as_str() {
            SERVING | UNHEALTHY => Err("what came late was followed".to_owned()),
            _ => Ok(()),
        }
    }

    async fn shares_an_address(&self) -> Kept {
        let (one, twin) = (self.member(0), self.member(1));
        let twin = Member { addresses: one.addresses.clone(), ..twin };
        self.apply(&[(&one, SERVE), (&twin, OFF)]).await?;
        self.until(&one, SERVING).await?;
        self.apply(&[(&one, OFF), (&twin, OFF)]).await?;
        self.until_over(&one).await?;
        self.until_over(&twin).await
    }

    async fn takes_odd_addresses(&self) -> Kept {
        let (member, homeless) =
            (self.member(0), Member { addresses: Vec::new(), ..self.member(1) });
        let six = Member { addresses: vec!["fd00::7".to_owned()], ..self.member(2) };
        self.apply(&[(&member, SERVE), (&homeless, SERVE), (&six, OFF)]).await?;
        self.until(&member, SERVING).await?;
        let seen = self.observe(&[&homeless, &six]).await?;
        match seen.get(&homeless.uid).map(|seen| seen.state.as_str()) {
            Some(SERVING) => Err("a member without an address serves".to_owned()),
            _ => Ok(()),
        }
    }

    async fn answers_for_many(&self) -> Kept {
        let nth = |n: u32| Member {
            uid: format!("many-{n}"),
            name: format!("many-{n}"),
            addresses: vec![format!("10.255.{}.{}", n / 250, n % 250 + 1)],
        };
        let many: Vec<Member> = (0..MANY).map(nth).collect();
        let began = Instant::now();
        self.observe(&many.iter().collect::<Vec<_>>()).await?;
        match began.elapsed() {
            late if late > MANY_WITHIN => Err(format!("it took {late:?}")),
            _ => Ok(()),
        }
    }

    async fn refuses_nonsense(&self) -> Kept {
        let employer = Employer { params: "{".to_owned(), ..self.employer.clone() };
        let asked = ObserveRequest { employer: Some(employer), members: vec![self.member(0)] };
        match self.adapter.observe(asked).await {
            Err(Error::Refused(_)) => Ok(()),
            Err(other) => Err(format!("it says {other}, which looks as if it were broken")),
            Ok(_) => Err("it answers as if all were well".to_owned()),
        }
    }

    async fn forgets(&self) -> Kept {
        let member = self.member(0);
        self.serves().await?;
        self.forget().await?;
        self.until_over(&member).await?;
        self.forget().await.map_err(|e| format!("once more: {e}"))
    }

    async fn leaves_others_alone(&self, other: &Subject<'_>) -> Kept {
        let (ours, theirs) = (self.member(0), other.member(1));
        self.apply(&[(&ours, SERVE)]).await?;
        self.until(&ours, SERVING).await?;
        other.apply(&[(&theirs, SERVE)]).await?;
        other.until(&theirs, SERVING).await?;
        other.apply(&[(&theirs, OFF)]).await?;
        other.until_over(&theirs).await?;
        other.forget().await?;
        self.is(&ours, &[SERVING], |state| format!("ours is {state} after theirs went")).await
    }

    async fn survives(&self, command: &str) -> Kept {
        let member = self.member(0);
        self.serves().await?;
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).stdin(Stdio::null());
        let status = shell.status().await.map_err(|e| format!("{command}: {e}"))?;
        if !status.success() {
            return Err(format!("{command}: {status}"));
        }
        let end = Instant::now() + self.setup.within;
        while let Err(error) = self.adapter.handshake("consist-conformance").await {
            if Instant::now() > end {
                return Err(format!("it does not come back: {error}"));
            }
            sleep(ASK_AGAIN).await;
        }
        // Said once more as it was, not as something new.
        let generation = self.generation.load(Ordering::Relaxed);
        let again = self.apply_as(generation, &[(&member, SERVE)]).await;
        again.map_err(|e| format!("apply: {e}"))?;
        self.until(&member, SERVING).await?;
        self.apply(&[(&member, OFF)]).await?;
        self.until_over(&member).await
    }
}
