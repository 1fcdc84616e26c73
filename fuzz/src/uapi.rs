//! Requests to the configuration socket, and answers of devices.

use std::collections::HashSet;

use strait_wg::PrivateKey;
use strait_wg::uapi::requests::MAX_REQUEST_BYTES;
use strait_wg::uapi::{
    Configuration, DeviceReport, Operation, PeerReport, Report, RequestParser, Step, ending,
};

/// After any requests the configuration is consistent, and its report can be set again. An answer that
/// can be parsed is written and parsed again without a change.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn uapi(bytes: &[u8]) {
    check_requests(bytes);
    if let Ok(text) = str::from_utf8(bytes)
        && let Ok(report) = Report::parse(text)
    {
        assert_reparses(&report);
    }
}

fn check_requests(bytes: &[u8]) {
    assert!(bytes.len() <= MAX_REQUEST_BYTES, "the target bounds its inputs");
    let mut parser = RequestParser::default();
    let mut configuration = Configuration::default();

    for line in bytes.split(|byte| *byte == b'\n') {
        match parser.take(line) {
            Step::More | Step::Answer(Ok(Operation::Get) | Err(_)) => {}
            Step::Answer(Ok(Operation::Set(changes))) => {
                configuration = configuration.with(&changes);
                assert_consistent(&configuration);
            }
            Step::Last(_) | Step::Close => return,
        }
    }
}

/// No key and no allowed IP occurs twice, and no peer has the device's own key.
fn assert_consistent(configuration: &Configuration) {
    let own = configuration.private_key.as_ref().map(PrivateKey::public_key);
    let mut keys = HashSet::new();
    let mut allowed_ips = HashSet::new();
    for peer in &configuration.peers {
        assert!(keys.insert(peer.public_key) && Some(peer.public_key) != own, "{peer:?}");
        assert!(peer.allowed_ips.iter().all(|prefix| allowed_ips.insert(*prefix)), "{peer:?}");
    }

    let report = as_report(configuration);
    assert_reparses(&report);
    let text = report.to_text();
    let again = parse_set(text.lines());
    assert_eq!(again.peers, configuration.peers);
    assert_eq!(
        (again.listen_port, again.fwmark),
        (configuration.listen_port, configuration.fwmark)
    );
    assert_eq!(again.private_key.map(|key| key.public_key()), own);
}

fn as_report(configuration: &Configuration) -> Report {
    let device = DeviceReport {
        private_key: configuration.private_key.clone(),
        listen_port: configuration.listen_port,
        fwmark: configuration.fwmark,
        ..DeviceReport::default()
    };
    let peers = configuration.peers.iter().map(|peer| PeerReport {
        preshared_key: peer.preshared_key.clone(),
        endpoint: peer.endpoint.map(Into::into),
        persistent_keepalive: peer.persistent_keepalive,
        allowed_ips: peer.allowed_ips.iter().copied().map(Into::into).collect(),
        ..PeerReport::new(peer.public_key)
    });

    Report { device, peers: peers.collect() }
}

/// The configuration of a new device after a set of `lines`.
fn parse_set<'a>(lines: impl Iterator<Item = &'a str>) -> Configuration {
    let mut parser = RequestParser::default();
    let mut last = parser.take(b"set=1");
    for line in lines.chain([""]) {
        last = parser.take(line.as_bytes());
    }

    let Step::Answer(Ok(Operation::Set(changes))) = last else {
        panic!("the report cannot be set: {last:?}")
    };

    Configuration::default().with(&changes)
}

fn assert_reparses(report: &Report) {
    let text = report.to_text();
    let answer = [text.as_str(), &ending(Ok(()))].concat();

    let again = Report::parse(&answer).unwrap_or_else(|error| panic!("{error}: {answer:?}"));

    assert_eq!(*again.to_text(), *text);
}
