//! The nftables table of the agent, which concerns packets from pods of this cluster to remote clusters alone.
//!
//! ```text
//! table inet strait-node {
//!     chain postrouting {
//!         type nat hook postrouting priority 99;       before masquerade rules, which are at 100
//!         ip saddr 10.244.0.0/16 jump remotes
//!     }
//!     chain remotes {
//!         ip daddr 10.71.0.0/16 snat ip to ip saddr    source NAT to the same address: the kernel asks no further chain
//!     }
//!     chain output {
//!         type filter hook output priority 0;
//!         icmp type redirect jump redirects
//!         icmpv6 type nd-redirect jump redirects
//!     }
//!     chain redirects {
//!         meta nfproto ipv4 @th,192,16 0xa47 counter drop     the destination of the packet that the redirect is about
//!     }
//!     chain forward {
//!         type filter hook forward priority 0;
//!         ether saddr 0e:53:ac:12:00:02 jump from-0e53ac120002     a node to which prefixes are routed
//!     }
//!     chain from-0e53ac120002 {
//!         ip daddr 10.71.0.0/16 counter reject with icmpx host-unreachable
//!     }
//! }
//! ```
//!
//! - **No masquerade.** Remote clusters would see all pods of a node with its address. Liqo's fabric does the same with
//!   its FirewallConfiguration `masquerade-bypass`. A translation is chosen with the first packet of a connection:
//!   existing connections keep theirs.
//! - **No redirects.** Where pods and the gateway are on one bridge, the kernel tells pods to send to the gateway
//!   directly (RFC 792, RFC 4861 section 8.2). A pod that obeys loses its way when the gateway is replaced. The sysctl
//!   `all/send_redirects` is read-only in a pod, and IPv6 has none.
//! - **Nothing circles.** What a node sends here is not sent back to it: see [`super::split_horizon`]. A kernel without
//!   `reject` drops it.

mod message;

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::io;

use ipnet::IpNet;
use rtnetlink::sys::{Socket, SocketAddr};
use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};

use super::split_horizon::PrefixesByNode;
use super::state::Mac;
use message::{Batch, Hook, comment_of, expressions};

/// The name of the table, in the family `inet`.
pub(super) const TABLE: &str = "strait-node";

/// One before that of source NAT, `NF_IP_PRI_NAT_SRC`.
const PRIORITY: i32 = 99;

const POSTROUTING: &str = "postrouting";
const REMOTES: &str = "remotes";
const OUTPUT: &str = "output";
const REDIRECTS: &str = "redirects";
const FORWARD: &str = "forward";

/// `NETLINK_NETFILTER`.
const NETLINK_NETFILTER: isize = 12;

/// A transaction is one message, of some 760 bytes for each remapped prefix.
const SEND_BUFFER_BYTES: usize = 1 << 22;

/// The content of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ruleset {
    /// The pod prefixes of this cluster whose packets are not masqueraded.
    pods: Vec<IpNet>,
    /// The remapped prefixes of remote clusters.
    remotes: Vec<IpNet>,
    /// Those whose packets must not come from a node.
    prefixes_by_node: PrefixesByNode,
}

/// What happens to a packet that would go back.
#[derive(Clone, Copy)]
enum Refusal {
    Reject,
    Drop,
}

/// What [`Ruleset::apply`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Unchanged,
    Written,
}

impl Ruleset {
    /// For packets from `pods` to `remotes`, and from nodes. Prefixes are joined where that changes nothing.
    pub(super) fn new(
        pods: impl Iterator<Item = IpNet>,
        remotes: impl Iterator<Item = IpNet>,
        prefixes_by_node: PrefixesByNode,
    ) -> Self {
        let [pods, remotes] =
            [pods.collect(), remotes.collect()].map(|all: Vec<_>| IpNet::aggregate(&all));

        Self { pods, remotes, prefixes_by_node }
    }

    fn is_empty(&self) -> bool {
        self.remotes.is_empty()
    }

    /// Replaces the table in one transaction, unless it is this one. Without remote prefixes there is no table.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it, or has no nftables.
    pub(super) fn apply(&self) -> io::Result<Outcome> {
        let socket = connect()?;
        let found = table_comment(&socket)?;
        let is_right =
            if self.is_empty() { found.is_none() } else { found == Some(Some(self.comment())) };
        if is_right {
            return Ok(Outcome::Unchanged);
        }
        match send(&socket, &self.batch(Refusal::Reject)) {
            // The kernel has no module for it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                send(&connect()?, &self.batch(Refusal::Drop))?;
            }
            outcome => outcome?,
        }

        Ok(Outcome::Written)
    }

    /// By which the table is recognised; `nft list table inet strait-node` prints it.
    fn comment(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);

        format!("strait node {:016x}", hasher.finish())
    }

    /// The messages of the transaction.
    fn batch(&self, refusal: Refusal) -> Vec<u8> {
        let mut batch = Batch::new(TABLE);
        // A table that is missing cannot be deleted.
        batch.add_table(None);
        batch.delete_table();
        if !self.is_empty() {
            batch.add_table(Some(&self.comment()));
            batch.add_base_chain(POSTROUTING, "nat", Hook::POSTROUTING, PRIORITY);
            batch.add_chain(REMOTES);
            for pods in &self.pods {
                batch.add_rule(POSTROUTING, &expressions::jump_if_source(*pods, REMOTES));
            }
            batch.add_base_chain(OUTPUT, "filter", Hook::OUTPUT, 0);
            batch.add_chain(REDIRECTS);
            for rule in expressions::jump_if_redirect(REDIRECTS) {
                batch.add_rule(OUTPUT, &rule);
            }
            for remote in &self.remotes {
                batch.add_rule(REMOTES, &expressions::keep_source_if_destination(*remote));
                batch.add_rule(REDIRECTS, &expressions::drop_redirect_if_destination(*remote));
            }
            self.add_split_horizon(refusal, &mut batch);
        }

        batch.finish()
    }

    fn add_split_horizon(&self, refusal: Refusal, batch: &mut Batch<'_>) {
        if self.prefixes_by_node.is_empty() {
            return;
        }
        batch.add_base_chain(FORWARD, "filter", Hook::FORWARD, 0);
        for (mac, prefixes) in &self.prefixes_by_node {
            let chain = chain_of(*mac);
            batch.add_chain(&chain);
            batch.add_rule(FORWARD, &expressions::jump_if_from(mac.0, &chain));
            for prefix in prefixes {
                let rule = match refusal {
                    Refusal::Reject => expressions::reject_if_destination(*prefix),
                    Refusal::Drop => expressions::drop_if_destination(*prefix),
                };
                batch.add_rule(&chain, &rule);
            }
        }
    }
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let list = |prefixes: &[IpNet]| {
            let texts: Vec<_> = prefixes.iter().map(ToString::to_string).collect();
            texts.join(", ")
        };

        write!(f, "to {}, unmasqueraded from [{}]", list(&self.remotes), list(&self.pods))?;
        for (mac, prefixes) in &self.prefixes_by_node {
            let prefixes: Vec<_> = prefixes.iter().copied().collect();
            write!(f, ", {} not back to {mac}", list(&prefixes))?;
        }

        Ok(())
    }
}

/// The name of the chain for packets from a node.
fn chain_of(mac: Mac) -> String {
    let digits: String = mac.0.iter().map(|byte| format!("{byte:02x}")).collect();

    format!("from-{digits}")
}

/// Removes the table; returns whether there was one.
///
/// # Errors
///
/// If the kernel refuses it.
pub(super) fn remove() -> io::Result<bool> {
    let removed = Ruleset::default().apply();

    match removed {
        Ok(outcome) => Ok(outcome == Outcome::Written),
        Err(error) if is_not_supported(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the kernel has no nftables, or no source NAT of the family `inet` (before Linux 5.2).
pub(super) fn is_not_supported(error: &io::Error) -> bool {
    let refusals = [libc::EPROTONOSUPPORT, libc::EOPNOTSUPP];

    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|number| refusals.contains(&number))
}

fn connect() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // The kernel answers before `send` returns.
    socket.set_non_blocking(true)?;
    // Without NET_ADMIN outside user namespaces, `net.core.wmem_max` is the limit.
    set_socket_send_buffer_size_force(&socket, SEND_BUFFER_BYTES)
        .or_else(|_| set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES))?;

    Ok(socket)
}

/// The comment of our table, if it has one; `None` if there is no table.
fn table_comment(socket: &Socket) -> io::Result<Option<Option<String>>> {
    socket.send(&message::get_table(TABLE), 0)?;
    let (answer, _) = socket.recv_from_full()?;
    match message::error_of(&answer) {
        Some(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        // nfnetlink knows no such subsystem.
        Some(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(io::ErrorKind::Unsupported.into())
        }
        Some(error) => Err(error),
        None => Ok(Some(comment_of(&answer))),
    }
}

fn send(socket: &Socket, batch: &[u8]) -> io::Result<()> {
    socket.send(batch, 0)?;
    // A transaction without a refused message has no answer.
    loop {
        match socket.recv_from_full() {
            Ok((answer, _)) => {
                if let Some(error) = message::error_of(&answer) {
                    return Err(error);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruleset(remotes: &[&str]) -> Ruleset {
        let parse = |text: &&str| text.parse().unwrap();
        let pods = ["10.244.0.0/16", "10.244.1.0/24"];

        Ruleset::new(pods.iter().map(parse), remotes.iter().map(parse), PrefixesByNode::new())
    }

    #[test]
    fn prefixes_within_others_are_left_out() {
        let ruleset = ruleset(&["10.71.0.0/16", "fd00:71::/48", "10.71.0.0/24"]);

        assert_eq!(ruleset.pods, ["10.244.0.0/16".parse().unwrap()]);
        assert_eq!(ruleset.remotes.len(), 2);
    }

    #[test]
    fn a_comment_belongs_to_one_content() {
        let [first, same, other] = [["10.71.0.0/16"], ["10.71.0.0/16"], ["10.72.0.0/16"]]
            .map(|text| ruleset(&text).comment());

        assert_eq!(first, same);
        assert_ne!(first, other);
    }
}
