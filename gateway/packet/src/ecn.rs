//! Explicit congestion notification across the tunnel (RFC 6040).

/// The two ECN bits of an IP header (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECN-capable transport: `00`.
    NotEct,
    /// ECN-capable transport, codepoint 1: `01`.
    Ect1,
    /// ECN-capable transport, codepoint 0: `10`.
    Ect0,
    /// Congestion experienced: `11`.
    Ce,
}

impl Ecn {
    /// The mark in the two lowest bits of a type-of-service or traffic-class byte.
    #[must_use]
    #[inline]
    pub const fn from_traffic_class(traffic_class: u8) -> Self {
        match traffic_class & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The two bits, in the lowest positions.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::NotEct => 0b00,
            Self::Ect1 => 0b01,
            Self::Ect0 => 0b10,
            Self::Ce => 0b11,
        }
    }
}

/// The mark of the outer header for a packet that enters the tunnel: normal mode of RFC 6040
/// section 4.1, which copies it.
#[must_use]
#[inline]
pub const fn encapsulate(inner: Ecn) -> Ecn {
    inner
}

/// The mark of the inner header for a packet that leaves the tunnel; `None` if it must be dropped,
/// because congestion was experienced and the inner packet is not ECN-capable.
///
/// # Source
///
/// RFC 6040 section 4.2, figure 4.
#[must_use]
#[inline]
pub const fn decapsulate(inner: Ecn, outer: Ecn) -> Option<Ecn> {
    match (inner, outer) {
        (Ecn::NotEct, Ecn::Ce) => None,
        (Ecn::NotEct, Ecn::NotEct | Ecn::Ect0 | Ecn::Ect1) => Some(Ecn::NotEct),
        (Ecn::Ect0, Ecn::Ect1) => Some(Ecn::Ect1),
        (Ecn::Ect0 | Ecn::Ect1, Ecn::Ce) => Some(Ecn::Ce),
        (Ecn::Ect0 | Ecn::Ect1 | Ecn::Ce, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entering_the_tunnel_copies_the_mark() {
        let marks = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

        let outer = marks.map(encapsulate);

        assert_eq!(outer, marks);
    }

    #[test]
    fn leaving_the_tunnel_follows_rfc_6040() {
        let (not_ect, ect0, ect1, ce) = (Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce);
        let outer = [not_ect, ect0, ect1, ce];

        let row = |inner| outer.map(|outer| decapsulate(inner, outer));

        assert_eq!(row(not_ect), [Some(not_ect), Some(not_ect), Some(not_ect), None]);
        assert_eq!(row(ect0), [Some(ect0), Some(ect0), Some(ect1), Some(ce)]);
        assert_eq!(row(ect1), [Some(ect1), Some(ect1), Some(ect1), Some(ce)]);
        assert_eq!(row(ce), [Some(ce); 4]);
    }

    #[test]
    fn dscp_does_not_change_the_mark() {
        for traffic_class in 0..=u8::MAX {
            let mark = Ecn::from_traffic_class(traffic_class);

            assert_eq!(mark.bits(), traffic_class & 0b11);
        }
    }
}
