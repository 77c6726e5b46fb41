//! Operators that are killed without warning, at any point of a rollout.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use kube::ResourceExt as _;
use podops_api::marks;
use podops_e2e::lab::{Lab, OPERATORS, programs};

const PODS: i32 = 10;
const KILLS: u64 = 20;
/// Fixed, so that a failure can be looked at again.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number below `below` for each turn (SplitMix64).
fn dice(turn: u64, below: u64) -> u64 {
    let mut z = SEED.wrapping_mul(turn + 1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % below
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_point_of_a_rollout_leaves_nothing_stuck_and_no_label_behind() {
    let lab = Lab::start(&programs().unwrap()).await.unwrap();
    lab.create("web", 10, "nginx:0").await.unwrap();
    lab.settled("web", PODS, Duration::from_secs(60)).await.unwrap();
    let born: Vec<_> = lab.pods_of("web").await.unwrap().into_iter().map(|pod| pod.uid()).collect();
    for turn in 0..KILLS {
        lab.set_image("web", &format!("nginx:{}", turn + 1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(dice(turn, 900))).await;
        let victim = OPERATORS[usize::try_from(turn).unwrap() % OPERATORS.len()];
        lab.kill_and_restart(victim).await.unwrap();
        if let Err(stuck) = lab.settled("web", PODS, Duration::from_secs(60)).await {
            panic!("after kill {turn} of {victim}: {stuck:#}");
        }
        for pod in lab.pods_of("web").await.unwrap() {
            let left: Vec<_> =
                pod.labels().keys().filter(|key| key.contains(".podopslifecycle.")).collect();
            assert!(
                left.is_empty(),
                "after kill {turn} of {victim}: {} has {left:?}",
                pod.name_any()
            );
            assert!(pod.labels().contains_key(marks::SERVICE_AVAILABLE));
        }
    }
    let now: Vec<_> = lab.pods_of("web").await.unwrap().into_iter().map(|pod| pod.uid()).collect();
    assert_eq!(born, now, "a Pod was lost on the way");
}
