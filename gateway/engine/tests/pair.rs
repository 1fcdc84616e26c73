//! Two engines with a virtual clock and a network that loses, repeats and reorders datagrams. Each test runs with both
//! WireGuard implementations at both ends.
//!
//! Built with the feature `virtual-clock` only, because one of the implementations reads a clock of its own:
//! `cargo test -p strait-engine --features virtual-clock --test pair`.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

/// All tests with these engines at Milan and at Rome.
macro_rules! between {
    ($name:ident, $milan:ident, $rome:ident) => {
        mod $name {
            const ENGINES: [strait_wg::Engine; 2] =
                [strait_wg::Engine::$milan, strait_wg::Engine::$rome];

            mod cases {
                include!("pair/cases.rs");
            }
            mod endpoints {
                include!("pair/endpoints.rs");
            }
            mod keys {
                include!("pair/keys.rs");
            }
            mod packets {
                include!("pair/packets.rs");
            }
            mod protocol_checker {
                include!("pair/protocol_checker.rs");
            }
            mod reloads {
                include!("pair/reloads.rs");
            }
            mod renewal {
                include!("pair/renewal.rs");
            }
            mod seeds {
                include!("pair/seeds.rs");
            }
            mod successors {
                include!("pair/successors.rs");
            }
            mod world {
                include!("pair/world.rs");
            }
        }
    };
}

between!(boringtun, Boringtun, Boringtun);
between!(native, Native, Native);
between!(native_server, Native, Boringtun);
between!(native_client, Boringtun, Native);
