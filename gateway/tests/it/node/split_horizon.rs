//! Nodes that have a different gateway in mind.

use std::collections::BTreeSet;
use std::time::Duration;

use strait_lab::traffic::Ping;
use strait_lab::wait_until;

use super::world::{PATIENCE, REMOTE, REMOTE_IPV6, World};

/// Type and code of ICMP and ICMPv6: host and address unreachable (RFC 792, RFC 4443 section 3.1).
const HOST_UNREACHABLE: (u8, u8) = (3, 1);
const ADDRESS_UNREACHABLE: (u8, u8) = (1, 3);

/// Of both: the hop limit was exceeded.
const EXPIRED: [(u8, u8); 2] = [(11, 0), (3, 0)];

/// Node 1 has no agent when the gateway moves to it: it sends packets to the former node, and that one back.
#[test]
fn packets_do_not_circle_between_nodes() {
    let Some(mut world) = World::running(&["10.71.0.0/16", "fd00:71::/56"]) else {
        return;
    };

    for former in [2, 3] {
        world.put_gateway(former);
        for node in 1..=3 {
            world.wait_for_way_to(node, former);
            world.wait_for_ping(node, REMOTE);
            world.wait_for_ping(node, REMOTE_IPV6);
        }
        world.wait_for_split_horizon(1);
        world.stop(1);
        world.put_gateway(1);

        // IPv6 first: its errors differ from those of nodes that have no gateway for a moment.
        for (target, unreachable) in
            [(REMOTE_IPV6, ADDRESS_UNREACHABLE), (REMOTE, HOST_UNREACHABLE)]
        {
            // Node 3 may reach no VXLAN device on node 1.
            for node in BTreeSet::from([1, 2, former]) {
                let ping = Ping { timeout: Duration::from_millis(200), ..Ping::new(target, 1) };
                let is_rejected = || {
                    let report = ping.run(&world.pods[node - 1])?;
                    let errors: Vec<_> =
                        report.errors.iter().map(|error| (error.kind, error.code)).collect();
                    assert!(!errors.iter().any(|error| EXPIRED.contains(error)), "{report:?}");
                    Ok(errors == [unreachable])
                };
                let name = format!("{target} is unreachable from node-{node}");
                wait_until(name, PATIENCE, is_rejected).unwrap();
            }
        }
        world.start(1, &[]);
        world.wait_for_ping(1, REMOTE);
    }

    world.finish();
}
