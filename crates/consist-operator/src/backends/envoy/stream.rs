//! One Envoy's stream of endpoint discovery: its clusters, and the versions that it was sent.

use std::collections::{BTreeMap, BTreeSet};

use super::fleet::{Assignment, ClusterVersion, Fleet};

/// State of one stream.
#[derive(Debug, Default)]
pub struct EndpointStream {
    /// Subscribed clusters.
    clusters: BTreeSet<String>,
    /// Last version sent, by cluster.
    sent: BTreeMap<String, u64>,
    /// Version of each unacknowledged response, by nonce.
    unacknowledged: BTreeMap<String, ClusterVersion>,
}

/// A response to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextResponse {
    /// Cluster as it is served now.
    pub assignment: Assignment,
    /// Nonce by which the Envoy acknowledges or rejects the response.
    pub nonce: String,
}

impl EndpointStream {
    /// Sets the subscribed clusters. Returns those that were not subscribed before.
    pub fn subscribe(&mut self, clusters: BTreeSet<String>) -> Vec<String> {
        let new = clusters.difference(&self.clusters).cloned().collect();
        self.sent.retain(|cluster, _| clusters.contains(cluster));
        self.clusters = clusters;
        new
    }

    /// Takes the version that a request with this nonce acknowledges or rejects, if there is one.
    pub fn take_version(&mut self, nonce: &str) -> Option<ClusterVersion> {
        self.unacknowledged.remove(nonce)
    }

    /// Returns a response with the current version of a cluster, if one was not sent yet, and
    /// records that it is sent.
    ///
    /// Each response contains one cluster, because Envoy rejects responses as a whole.
    pub fn next_response(&mut self, fleet: &Fleet) -> Option<NextResponse> {
        let mut all = self.clusters.iter().filter_map(|cluster| fleet.assignment(cluster));
        let assignment = all.find(|found| {
            let ClusterVersion { cluster, version } = &found.version;
            self.sent.get(cluster) != Some(version)
        })?;
        let next = assignment.version.clone();
        let nonce = format!("{}@{}", next.cluster, next.version);
        self.unacknowledged.retain(|_, version| version.cluster != next.cluster);
        self.sent.insert(next.cluster.clone(), next.version);
        self.unacknowledged.insert(nonce.clone(), next);
        Some(NextResponse { assignment, nonce })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::backends::envoy::Params;

    #[test]
    fn each_version_is_sent_once_until_subscribed_again() {
        let (mut fleet, mut stream) = (Fleet::new(Instant::now()), EndpointStream::default());
        let params: Params = serde_json::from_str(r#"{"port":80}"#).unwrap();
        let web = || BTreeSet::from(["web".to_owned()]);
        assert_eq!(stream.subscribe(web()), ["web"]);
        assert_eq!(stream.next_response(&fleet), None, "before the first sync");
        fleet.sync("web", &params, &[], Instant::now());
        let first = stream.next_response(&fleet).unwrap();
        assert_eq!(stream.next_response(&fleet), None);
        assert_eq!(stream.take_version(&first.nonce), Some(first.assignment.version));
        assert_eq!(stream.take_version(&first.nonce), None);
        assert!(stream.subscribe(web()).is_empty());
        assert_eq!(stream.next_response(&fleet), None);
        stream.subscribe(BTreeSet::new());
        assert_eq!(stream.subscribe(web()), ["web"]);
        assert!(stream.next_response(&fleet).is_some());
    }
}
