//! The conditions of a rule, one of each kind, as the shapes of Liqo's objects have them.

use remap::Prefix;
use remap::ruleset::{Condition, Devices, Property};

/// The conditions of a rule, if there is at most one of each property and none is negated but that on the input
/// device.
#[derive(Debug, Default)]
pub(super) struct Selector<'a> {
    pub(super) source: Option<Prefix>,
    pub(super) destination: Option<Prefix>,
    pub(super) input: Option<(&'a Devices, IsNegated)>,
    pub(super) output: Option<&'a Devices>,
    pub(super) protocol: Option<u8>,
    pub(super) has_ports: bool,
}

pub(super) type IsNegated = bool;

impl<'a> Selector<'a> {
    pub(super) fn of(conditions: &'a [Condition]) -> Option<Self> {
        let mut selector = Self::default();
        for Condition { is_negated, property } in conditions {
            let former = match (property, *is_negated) {
                (Property::InputDevice(devices), is_negated) => {
                    selector.input.replace((devices, is_negated)).is_some()
                }
                (Property::Source(addresses), false) => {
                    selector.source.replace(addresses.prefix()?).is_some()
                }
                (Property::Destination(addresses), false) => {
                    selector.destination.replace(addresses.prefix()?).is_some()
                }
                (Property::OutputDevice(devices), false) => {
                    selector.output.replace(devices).is_some()
                }
                (Property::Protocol(number), false) => selector.protocol.replace(*number).is_some(),
                (Property::SourcePort(_) | Property::DestinationPort(_), false) => {
                    selector.has_ports = true;
                    false
                }
                (_, true) => return None,
            };
            if former {
                return None;
            }
        }

        Some(selector)
    }
}
