//! What clients of a device send, and what devices answer.

use std::collections::HashSet;

use strait_wg::PrivateKey;
use strait_wg::uapi::requests::MAX_REQUEST_BYTES;
use strait_wg::uapi::{
    Configuration, DeviceReport, Operation, PeerReport, Report, RequestParser, Step, ending,
};

/// Whatever is sent, a configuration keeps its promises and can be told and set again; whatever is
/// answered can be told again, if it can be understood.
///
/// # Panics
///
/// If not.
pub fn uapi(bytes: &[u8]) {
    ask(bytes);
    if let Ok(text) = str::from_utf8(bytes)
        && let Ok(report) = Report::parse(text)
    {
        tell_again(&report);
    }
}

fn ask(bytes: &[u8]) {
    assert!(bytes.len() <= MAX_REQUEST_BYTES, "the target bounds its inputs");
    let mut conversation = RequestParser::default();
    let mut kept = Configuration::default();

    for line in bytes.split(|byte| *byte == b'\n') {
        match conversation.take(line) {
            Step::More | Step::Answer(Ok(Operation::Get) | Err(_)) => {}
            Step::Answer(Ok(Operation::Set(changes))) => {
                kept = kept.with(&changes);
                check(&kept);
            }
            Step::Last(_) | Step::Close => return,
        }
    }
}

/// No key and no allowed IP is there twice, and nobody has ours.
fn check(kept: &Configuration) {
    let own = kept.private_key.as_ref().map(PrivateKey::public_key);
    let mut keys = HashSet::new();
    let mut allowed_ips = HashSet::new();
    for peer in &kept.peers {
        assert!(keys.insert(peer.public_key) && Some(peer.public_key) != own, "{peer:?}");
        assert!(peer.allowed_ips.iter().all(|prefix| allowed_ips.insert(*prefix)), "{peer:?}");
    }

    let report = as_report(kept);
    tell_again(&report);
    let text = report.to_text();
    let again = set(text.lines());
    assert_eq!(again.peers, kept.peers);
    assert_eq!((again.listen_port, again.fwmark), (kept.listen_port, kept.fwmark));
    assert_eq!(again.private_key.map(|key| key.public_key()), own);
}

fn as_report(kept: &Configuration) -> Report {
    let device = DeviceReport {
        private_key: kept.private_key.clone(),
        listen_port: kept.listen_port,
        fwmark: kept.fwmark,
        ..DeviceReport::default()
    };
    let peers = kept.peers.iter().map(|peer| PeerReport {
        preshared_key: peer.preshared_key.clone(),
        endpoint: peer.endpoint.map(Into::into),
        persistent_keepalive: peer.persistent_keepalive,
        allowed_ips: peer.allowed_ips.iter().copied().map(Into::into).collect(),
        ..PeerReport::new(peer.public_key)
    });

    Report { device, peers: peers.collect() }
}

/// What a device without anything is after a set of `lines`.
fn set<'a>(lines: impl Iterator<Item = &'a str>) -> Configuration {
    let mut conversation = RequestParser::default();
    let mut last = conversation.take(b"set=1");
    for line in lines.chain([""]) {
        last = conversation.take(line.as_bytes());
    }

    let Step::Answer(Ok(Operation::Set(changes))) = last else {
        panic!("what was told cannot be set: {last:?}")
    };

    Configuration::default().with(&changes)
}

fn tell_again(report: &Report) {
    let text = report.to_text();
    let told = [text.as_str(), &ending(Ok(()))].concat();

    let again = Report::parse(&told).unwrap_or_else(|error| panic!("{error}: {told:?}"));

    assert_eq!(*again.to_text(), *text);
}
