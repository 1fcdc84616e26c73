//! The picture of the two clusters and their addresses. Pure.

use std::net::IpAddr;

use crate::Layout;

/// Width of a box, without its borders.
const BOX: usize = 20;

/// Width of the space between the gateways.
const UNDERLAY: usize = 15;

/// The lines of the picture. `underlay` are the addresses of the gateways of Rome and Milan.
pub(super) fn lines(layout: &Layout, underlay: [IpAddr; 2]) -> Vec<String> {
    let Layout { rome, milan, .. } = layout;
    let [at_rome, at_milan] = underlay.map(|address| address.to_string());
    let rule = "─".repeat(BOX);
    let tunnel = "═".repeat(UNDERLAY);
    let gap = " ".repeat(UNDERLAY);
    let half = (BOX + 2) * 2 + 3;

    let mut lines = vec![
        format!("  {:<half$}{gap}{}", "cluster rome", "cluster milan"),
        format!("  ┌{rule}┐   ┌{rule}┐{gap}┌{rule}┐   ┌{rule}┐"),
        format!(
            "  │{}│   │{}│{}│{}│   │{}│",
            centre("pod"),
            centre("gateway"),
            format_args!("{:^UNDERLAY$}", "WireGuard"),
            centre("gateway"),
            centre("pod")
        ),
    ];
    let pods = rome.pod_addresses().zip(milan.pod_addresses());
    for (index, (of_rome, of_milan)) in pods.enumerate() {
        let (joint, between) =
            if index == 0 { ("├───┤", &tunnel) } else { ("│   │", &gap) };
        let [left, right] = if index == 0 { [&*at_rome, &*at_milan] } else { [""; 2] };
        let (start, end) = if index == 0 { ("╞", "╡") } else { ("│", "│") };
        lines.push(format!(
            "  │{}{joint}{}{start}{between}{end}{}{joint}{}│",
            centre(&of_rome.to_string()),
            centre(left),
            centre(right),
            centre(&of_milan.to_string()),
        ));
    }
    lines.push(format!("  └{rule}┘   └{rule}┘{gap}└{rule}┘   └{rule}┘"));

    for (realm, remote) in rome.realms.iter().zip(&milan.realms) {
        let both = [
            ("pods are", realm.pods, remote.pods),
            ("sees the other's as", realm.remapped, remote.remapped),
        ];
        for (what, left, right) in both {
            let left = format!("{what} {left}");
            lines.push(format!("  {left:<half$}{gap}{what} {right}"));
        }
    }

    lines
}

fn centre(text: &str) -> String {
    format!("{text:^BOX$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_align_and_show_every_address() {
        let layout = Layout::equal();
        let underlay = [[198, 51, 100, 2].into(), [198, 51, 100, 3].into()];

        let lines = lines(&layout, underlay);

        let boxes: Vec<_> = lines.iter().filter(|line| line.ends_with(['│', '┐', '┘'])).collect();
        assert_eq!(boxes.len(), 5);
        assert!(boxes.iter().all(|line| line.chars().count() == boxes[0].chars().count()));
        let text = lines.join("\n");
        for address in ["10.244.1.5", "10.244.2.7", "198.51.100.3", "10.71.0.0/16"] {
            assert!(text.contains(address), "{address} in\n{text}");
        }
    }
}
