//! Property test: Pods that users, nodes and kubelets end during a rollout whose revision does not
//! run spread this revision to no further Pod.

use proptest::prelude::*;
use serde_json::json;

use super::World;

/// Image that never starts, see [`super::actors`].
const BAD: &str = "bad";
/// Number of Pods.
const REPLICAS: usize = 4;

/// Way in which a Pod leaves service without the CollaSet.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// A user deletes the Pod, and it terminates.
    Deleted,
    /// The Pod is removed at once, as with `--force` or with its node.
    Removed,
    /// The kubelet reports that the Pod has failed, for example under node pressure.
    Failed,
    /// The kubelet reports for a moment that the Pod is not ready.
    Unready,
    /// A user changes a label, so that the selector does not match.
    Released,
}

const LOSSES: [Loss; 5] =
    [Loss::Deleted, Loss::Removed, Loss::Failed, Loss::Unready, Loss::Released];

impl World {
    fn lose(&mut self, index: usize, loss: Loss) {
        let Some(pod) = self.live().into_iter().nth(index) else { return };
        match loss {
            Loss::Deleted => self.cluster.delete("pods", pod.name()),
            Loss::Removed => self.cluster.remove("pods", pod.name()),
            Loss::Failed => self.cluster.change("pods", pod.name(), |pod| {
                pod["status"]["phase"] = json!("Failed");
                pod["status"]["conditions"] = json!([]);
            }),
            Loss::Released => self.cluster.change("pods", pod.name(), |pod| {
                pod["metadata"]["labels"]["app"] = json!("other");
            }),
            Loss::Unready => self.cluster.change("pods", pod.name(), |pod| {
                pod["status"]["conditions"][0]["status"] = json!("False");
            }),
        }
    }

    /// Number of live Pods whose image does not run.
    fn bad(&self) -> usize {
        self.live().iter().filter(|pod| pod.image() == BAD).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn losses_spread_no_bad_revision(
        policy in prop::sample::select(vec!["Recreate", "InPlaceIfPossible", "Replace"]),
        has_persistent_names in any::<bool>(),
        max_unavailable in 1..3_usize,
        max_surge in prop::option::of(1..3_usize),
        losses in prop::collection::vec(
            (0..REPLICAS, prop::sample::select(LOSSES.to_vec()), any::<bool>()),
            1..12,
        ),
    ) {
        let replaces = policy == "Replace";
        // The successors of a replacement are surge Pods, any number without a limit; and new
        // instances may have the updated revision.
        let surge = if replaces { max_surge.unwrap_or(REPLICAS) } else { 0 };
        let has_new_instances = losses.iter().any(|(_, loss, _)| matches!(loss, Loss::Released));
        let taken = if replaces && !has_new_instances { 0 } else { max_unavailable };
        let spread = surge + taken;
        let rolling = json!({ "maxUnavailable": max_unavailable, "maxSurge": max_surge });
        let strategy = json!({ "podUpgradePolicy": policy, "rollingUpdate": rolling });
        let names = if has_persistent_names { "PersistentSequence" } else { "Random" };
        let mut world = World::with(json!({
            "replicas": REPLICAS,
            "updateStrategy": strategy,
            "namingStrategy": { "podNamingSuffixPolicy": names },
        }));
        world.converge();
        world.set_image(BAD);
        world.converge();
        prop_assert_eq!(world.bad(), if replaces { surge } else { max_unavailable });
        for (index, loss, settles) in losses {
            world.lose(index, loss);
            if settles {
                world.converge();
            } else {
                world.run_rounds(1);
            }
            prop_assert!(world.bad() <= spread, "{} Pods do not run", world.bad());
        }
        world.converge();
        let running = world.live().len() - world.bad();
        prop_assert!(running >= REPLICAS - taken, "{running} Pods run");
        world.set_image("v3");
        world.converge();
        prop_assert!(world.live().iter().all(|pod| pod.image() == "v3"));
    }
}
