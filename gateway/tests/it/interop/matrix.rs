//! The native engine with every other implementation, on all terms: a table, written by the run.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use strait_lab::TwoClusters;
use strait_lab::traffic::{Amount, Ping, tcp};
use strait_wg::Engine;

use crate::harness::require::require;
use crate::interop::NEEDS;
use crate::interop::partner::{Initiator, Installed, Pair, Partner, Terms};

/// Where the table goes, below the workspace.
const TABLE: &str = "../target/interop.md";

/// Bytes of TCP each way.
const BULK: Amount = Amount::Bytes(5_000_000);

#[test]
fn every_implementation_talks_to_us_on_all_terms() {
    let Some(_turn) = require(&NEEDS) else {
        return;
    };
    let mut table = String::from(
        "| partner | version | initiator | IPv4 | IPv4, preshared key | IPv6 | IPv6, preshared key |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let mut failures = Vec::new();

    for partner in Partner::ALL {
        let Some(installed) = Installed::find(partner) else {
            // Past the test harness, which would keep it to itself. Also where nothing else may be
            // skipped: it takes minutes to build, and the table says who was there.
            let name = partner.name();
            let _ = writeln!(
                io::stderr(),
                "SKIPPED: {name} is not in target/peers/bin: `make bench` builds it"
            );
            continue;
        };
        for initiator in [Initiator::Strait, Initiator::Partner] {
            let who = match initiator {
                Initiator::Strait => "strait",
                Initiator::Partner => partner.name(),
            };
            write!(table, "| {} | {} | {who} |", partner.name(), installed.version()).unwrap();
            for terms in all_terms(initiator) {
                let result =
                    catch_unwind(AssertUnwindSafe(|| assert_all_arrives(&installed, terms)));
                table.push_str(if result.is_ok() { " yes |" } else { " **no** |" });
                if result.is_err() {
                    failures.push((partner, terms));
                }
            }
            table.push('\n');
        }
    }

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, &table).unwrap();
    assert!(failures.is_empty(), "{failures:#?}\n{table}");
}

/// Both underlays, with a preshared key and without.
fn all_terms(initiator: Initiator) -> impl Iterator<Item = Terms> {
    [false, true].into_iter().flat_map(move |has_ipv6_underlay| {
        [false, true].map(move |has_preshared_key| Terms {
            has_preshared_key,
            has_ipv6_underlay,
            ..Terms::usual(Engine::Native, initiator)
        })
    })
}

/// Pings and TCP, from either pod to the other.
fn assert_all_arrives(installed: &Installed, terms: Terms) {
    let pair = Pair::start(installed, terms);
    let TwoClusters { rome, milan, .. } = &pair.clusters;
    for (from, to) in [(rome, milan), (milan, rome)] {
        let target = from.side.sees(&to.side).next().unwrap();
        let ping = Ping::new(target, 10).run(&from.pod).unwrap();
        let bulk = tcp(&from.pod, &to.pod, target, BULK).unwrap();

        assert!(ping.is_perfect(), "{terms:?}, {}: {ping:?}", from.name);
        assert!(bulk.is_intact, "{terms:?}, {}: {bulk:?}", from.name);
    }
    pair.finish();
}
