//! The table of `strait status`.

use crate::PeerInfo;

const HEAD: [&str; 6] = ["PEER", "ROLE", "STATUS", "LATENCY", "SERVER", "REASON"];

/// One line per peering, below the column names.
pub(super) fn of_peers(peers: &[PeerInfo]) -> String {
    if peers.is_empty() {
        return "no peerings\n".to_owned();
    }
    let rows: Vec<_> =
        std::iter::once(HEAD.map(str::to_owned)).chain(peers.iter().map(row)).collect();
    let mut widths = [0; HEAD.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }

    let lines = rows.iter().map(|row| {
        let cells: Vec<_> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("   ").trim_end())
    });
    lines.collect()
}

fn row(peer: &PeerInfo) -> [String; HEAD.len()] {
    let network = &peer.network;
    let gateway = network.gateway.as_ref();
    let server = gateway.and_then(|gateway| {
        let address = gateway.address.first()?;
        Some(match gateway.port {
            Some(port) => format!("{address}:{port}"),
            None => address.clone(),
        })
    });
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());

    [
        peer.cluster_id.clone(),
        or_none(gateway.map(|gateway| gateway.role.to_owned())),
        network.status.label().to_owned(),
        or_none(network.latency.clone()),
        or_none(server),
        network.alerts.join("; "),
    ]
}
