//! The table of `strait status`.

use crate::{GatewayInfo, PeerGateway, PeerInfo};

const HEAD: [&str; 6] = ["PEER", "ROLE", "STATUS", "LATENCY", "SERVER", "REASON"];

/// A cell for each column.
type Row = [String; HEAD.len()];

/// One line per peering, below the column names, and below that one for each gateway, if the peering has several.
pub(super) fn of_peers(peers: &[PeerInfo]) -> String {
    if peers.is_empty() {
        return "no peerings\n".to_owned();
    }
    let rows: Vec<_> =
        std::iter::once(HEAD.map(str::to_owned)).chain(peers.iter().flat_map(rows)).collect();
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

fn rows(peer: &PeerInfo) -> Vec<Row> {
    let network = &peer.network;
    let gateway = network.gateway.as_ref();
    let is_alone = network.gateways.is_empty();
    let first = [
        peer.cluster_id.clone(),
        or_none(gateway.map(|gateway| gateway.role.to_owned())),
        network.status.label().to_owned(),
        or_none(network.latency.clone().filter(|_| is_alone)),
        or_none(gateway.filter(|_| is_alone).and_then(server)),
        network.alerts.join("; "),
    ];

    std::iter::once(first).chain(network.gateways.iter().map(of_gateway)).collect()
}

fn of_gateway(GatewayInfo { name, status, alerts, gateway, latency }: &GatewayInfo) -> Row {
    [
        format!("  {name}"),
        gateway.role.to_owned(),
        status.label().to_owned(),
        or_none(latency.clone()),
        or_none(server(gateway)),
        alerts.join("; "),
    ]
}

/// The address of the server, with its port.
fn server(gateway: &PeerGateway) -> Option<String> {
    let address = gateway.address.first()?;

    Some(match gateway.port {
        Some(port) => format!("{address}:{port}"),
        None => address.clone(),
    })
}

fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Health, PeerCidr, PeerNetwork};

    #[test]
    fn each_of_several_gateways_has_a_line() {
        let gateway = |port| PeerGateway {
            role: "Server",
            address: vec!["172.18.0.3".to_owned()],
            port: Some(port),
        };
        let one = |name: &str, status, alerts: &[&str], port| GatewayInfo {
            name: name.to_owned(),
            status,
            alerts: alerts.iter().map(|alert| (*alert).to_owned()).collect(),
            gateway: gateway(port),
            latency: Some("12ms".to_owned()),
        };
        let network = PeerNetwork {
            status: Health::Degraded,
            alerts: vec!["1 of 2 gateways unhealthy: milan-1".to_owned()],
            cidr: PeerCidr::default(),
            gateway: Some(gateway(30742)),
            latency: Some("12ms".to_owned()),
            gateways: vec![
                one("milan", Health::Healthy, &[], 30742),
                one("milan-1", Health::Unhealthy, &["Connection: Connecting"], 30743),
            ],
        };
        let peer = PeerInfo { cluster_id: "milan".to_owned(), network };

        assert_eq!(
            of_peers(&[peer]),
            "PEER        ROLE     STATUS      LATENCY   SERVER             REASON\n\
             milan       Server   Degraded    -         -                  1 of 2 gateways unhealthy: milan-1\n\
             \x20 milan     Server   Healthy     12ms      172.18.0.3:30742\n\
             \x20 milan-1   Server   Unhealthy   12ms      172.18.0.3:30743   Connection: Connecting\n"
        );
    }
}
