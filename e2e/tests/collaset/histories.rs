//! A user's random actions have the same result on a CollaSet as on a Deployment or a StatefulSet.

use podops_bench::histories;
use podops_test_cluster::suite::{Lane, Suite, new_cluster};

/// Number of histories; `cargo xtask histories` runs more.
const HISTORIES: usize = 12;

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Long, users_see_the_same_as_of_native_workloads)
}

async fn users_see_the_same_as_of_native_workloads() {
    let cluster = new_cluster().await;
    let report = histories::run(&cluster, 0..HISTORIES, 1).await.unwrap();
    assert!(report.differences.is_empty(), "{:#?}", report.differences);
    assert_eq!(report.shared_claims, 0, "two Pods mounted one claim");
    cluster.assert_no_forbidden_requests().unwrap();
}
