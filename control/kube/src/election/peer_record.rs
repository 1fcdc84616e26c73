//! What a leader records about its peer in annotations of the Lease, for the next leader, which has heard nothing yet.

use std::net::SocketAddr;

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;

/// A server learns the endpoint from the peer alone.
const ENDPOINT: &str = "strait.io/peer-endpoint";

/// In bytes.
const PATH_MTU: &str = "strait.io/path-mtu";

/// What is known about the peer of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerRecord {
    /// Where the peer was heard.
    pub endpoint: Option<SocketAddr>,
    /// What probes found of the path to it. `None`: nothing yet.
    pub path_mtu: Option<ProbedPathMtu>,
}

/// What probes found of the path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbedPathMtu {
    /// The longest packet inside the tunnel that arrives, in bytes.
    Bytes(u16),
    /// Nothing: the peer answers no such probes.
    Unknown,
}

impl PeerRecord {
    /// The record in a Lease, as far as it is valid.
    pub(super) fn of(lease: &Lease) -> Self {
        let annotation = |name: &str| lease.annotations().get(name);
        let bytes = annotation(PATH_MTU).and_then(|text| text.parse().ok());

        Self {
            endpoint: annotation(ENDPOINT).and_then(|text| text.parse().ok()),
            path_mtu: bytes.map(ProbedPathMtu::Bytes),
        }
    }

    /// Writes what is known; what is not keeps what the leader before has written.
    pub(super) fn write(&self, metadata: &mut ObjectMeta) {
        let annotations = metadata.annotations.get_or_insert_default();
        if let Some(endpoint) = self.endpoint {
            annotations.insert(ENDPOINT.to_owned(), endpoint.to_string());
        }
        match self.path_mtu {
            Some(ProbedPathMtu::Bytes(bytes)) => {
                annotations.insert(PATH_MTU.to_owned(), bytes.to_string());
            }
            Some(ProbedPathMtu::Unknown) => {
                annotations.remove(PATH_MTU);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_invalid_annotation_is_no_record() {
        let mut lease = Lease::default();
        for (endpoint, path_mtu) in [("192.0.2.7", "1420.0"), ("", "-1"), ("a:1", "70000")] {
            let annotations = lease.annotations_mut();
            annotations.insert(ENDPOINT.to_owned(), endpoint.to_owned());
            annotations.insert(PATH_MTU.to_owned(), path_mtu.to_owned());

            assert_eq!(PeerRecord::of(&lease), PeerRecord::default());
        }
    }

    proptest! {
        /// Of a sequence of leaders the last one that knew something counts.
        #[test]
        fn what_is_known_replaces_the_record(
            records in prop::collection::vec((any::<Option<u16>>(), any::<Option<Option<u16>>>()), 1..9),
        ) {
            let mut lease = Lease::default();
            let mut expected = PeerRecord::default();
            for (port, path_mtu) in records {
                let endpoint = port.map(|port| SocketAddr::from(([192, 0, 2, 7], port)));
                let probed = path_mtu
                    .map(|bytes| bytes.map_or(ProbedPathMtu::Unknown, ProbedPathMtu::Bytes));
                PeerRecord { endpoint, path_mtu: probed }.write(&mut lease.metadata);

                expected.endpoint = endpoint.or(expected.endpoint);
                if let Some(bytes) = path_mtu {
                    expected.path_mtu = bytes.map(ProbedPathMtu::Bytes);
                }
                prop_assert_eq!(PeerRecord::of(&lease), expected);
            }
        }
    }
}
