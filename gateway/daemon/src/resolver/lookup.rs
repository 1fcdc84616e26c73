//! Looks up one name: its addresses and their TTL.
//!
//! The system's resolver returns the addresses: it uses `/etc/hosts`, `nsswitch.conf` and the search domains of a pod
//! like every other program. It returns no TTLs, so the DNS is queried for them afterwards, with the same
//! `/etc/resolv.conf`; its cache has the answer by then. Names that the DNS does not know have no TTL and are looked
//! up at intervals.
//!
//! The `domain` crate sends these queries; it adds three crates, `hickory-resolver` would add forty-eight, with
//! Unicode tables and a cache that is not needed.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use domain::base::{Name, RelativeName, Rtype};
use domain::rdata::{A, Aaaa};
use domain::resolv::StubResolver;
use domain::resolv::stub::Answer;
use domain::resolv::stub::conf::{ResolvConf, ResolvOptions};
use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::config::HostPort;

/// Timeout of a lookup. The system's resolver gives up after 5 s per server.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout of the query for the TTL, which is optional.
const TTL_TIMEOUT: Duration = Duration::from_millis(500);

/// The result of a lookup.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolved {
    /// In order of preference.
    pub(super) addresses: Vec<SocketAddr>,
    /// The TTL, if known.
    pub(super) ttl: Option<Duration>,
}

/// Resolves `target` with the system's resolver.
///
/// # Errors
///
/// The system's error, or a timeout.
pub(super) async fn look_up(target: &HostPort) -> io::Result<Resolved> {
    let found = timeout(LOOKUP_TIMEOUT, lookup_host((&*target.host, target.port))).await;
    let addresses: Vec<_> = found.map_err(|_| io::ErrorKind::TimedOut)??.collect();
    let ttl = timeout(TTL_TIMEOUT, ttl(&target.host, ResolvConf::default())).await;

    Ok(Resolved { addresses, ttl: ttl.ok().flatten() })
}

/// The TTL of the addresses of `host`, from the DNS servers of `conf`.
async fn ttl(host: &str, conf: ResolvConf) -> Option<Duration> {
    let names = names(host, &conf.options);
    let resolver = StubResolver::from_conf(conf);
    for name in names {
        let questions = [(&name, Rtype::A), (&name, Rtype::AAAA)];
        let [v4, v6] = questions.map(|question| resolver.query(question));
        let (v4, v6) = tokio::join!(v4, v6);
        let ttls = [v4, v6].into_iter().flatten().filter_map(|answer| ttl_of_addresses(&answer));
        if let Some(ttl) = ttls.min() {
            return Some(ttl);
        }
    }

    None
}

/// The minimum TTL of an answer, including aliases; `None` without addresses.
fn ttl_of_addresses(answer: &Answer) -> Option<Duration> {
    let section = answer.answer().ok()?;
    let has_address = section.limit_to::<A>().flatten().next().is_some()
        || section.limit_to::<Aaaa>().flatten().next().is_some();
    let ttls = section.flatten().map(|record| record.ttl().into_duration());

    if has_address { ttls.min() } else { None }
}

/// The names to query for `host`, in the resolver's order (resolv.conf(5), `ndots`).
fn names(host: &str, options: &ResolvOptions) -> VecDeque<Name<Vec<u8>>> {
    let Ok(absolute) = host.parse::<Name<Vec<u8>>>() else {
        return VecDeque::new();
    };
    if host.ends_with('.') {
        return VecDeque::from([absolute]);
    }

    let mut names = VecDeque::new();
    if let Ok(relative) = host.parse::<RelativeName<Vec<u8>>>() {
        for suffix in options.search.as_slice().iter().filter(|suffix| !suffix.is_root()) {
            if let Ok(name) = relative.clone().chain(suffix) {
                names.push_back(domain::base::name::ToName::to_vec(&name));
            }
        }
    }
    if host.matches('.').count() >= options.ndots {
        names.push_front(absolute);
    } else {
        names.push_back(absolute);
    }

    names
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use domain::base::iana::Rcode;
    use domain::base::{Message, MessageBuilder, Ttl};
    use domain::rdata::Cname;
    use domain::resolv::stub::conf::{ServerConf, Transport};
    use tokio::net::UdpSocket;

    use super::*;

    /// The configuration of a pod.
    const POD: &str = "search tenant.svc.cluster.local svc.cluster.local cluster.local\n\
                       nameserver 127.0.0.1\noptions ndots:5\n";

    #[test]
    fn search_domains_come_first_below_ndots() {
        assert_eq!(
            tried("rome.example", POD),
            [
                "rome.example.tenant.svc.cluster.local",
                "rome.example.svc.cluster.local",
                "rome.example.cluster.local",
                "rome.example",
            ]
        );
        assert_eq!(tried("rome.example.", POD), ["rome.example"]);
        assert_eq!(tried("a.b.c.d.e.f", POD)[0], "a.b.c.d.e.f");
        assert_eq!(tried("rome.example", "nameserver 127.0.0.1\n"), ["rome.example"]);
    }

    #[tokio::test]
    async fn the_shortest_ttl_on_the_way_counts() {
        let (conf, server) = server().await;
        tokio::spawn(serve(server));

        assert_eq!(ttl("rome", conf.clone()).await, Some(Duration::from_secs(30)));
        assert_eq!(ttl("oslo.example", conf).await, None);
    }

    #[tokio::test]
    async fn a_silent_server_delays_half_a_second() {
        let (conf, _server) = server().await;

        let answer = timeout(TTL_TIMEOUT, ttl("rome", conf)).await;

        assert!(answer.is_err(), "it waits for longer than we do");
    }

    fn tried(host: &str, conf: &str) -> Vec<String> {
        let mut parsed = ResolvConf::new();
        parsed.parse(&mut conf.as_bytes()).unwrap();
        parsed.finalize();

        names(host, &parsed.options).iter().map(ToString::to_string).collect()
    }

    /// A DNS server's socket, and the configuration that uses it.
    async fn server() -> (ResolvConf, UdpSocket) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut conf = ResolvConf::new();
        conf.parse(&mut "search wrong.example example\n".as_bytes()).unwrap();
        conf.servers = vec![ServerConf::new(socket.local_addr().unwrap(), Transport::UdpTcp)];
        conf.finalize();

        (conf, socket)
    }

    /// Serves rome.example, an alias with a TTL of 60 s for a name with an address with a TTL of 30 s.
    async fn serve(socket: UdpSocket) {
        let alias: Name<Vec<u8>> = "rome.example".parse().unwrap();
        let host: Name<Vec<u8>> = "host.example".parse().unwrap();
        let mut buffer = [0; 512];
        loop {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            let query = Message::from_octets(&buffer[..length]).unwrap();
            let question = query.sole_question().unwrap();
            let is_known = *question.qname() == alias;
            let code = if is_known { Rcode::NOERROR } else { Rcode::NXDOMAIN };
            let mut answer = MessageBuilder::new_vec().start_answer(&query, code).unwrap();
            if is_known {
                let ttl = Ttl::from_secs;
                answer.push((&alias, ttl(60), Cname::new(&host))).unwrap();
                if question.qtype() == Rtype::A {
                    answer.push((&host, ttl(30), A::from_octets(192, 0, 2, 7))).unwrap();
                }
            }
            socket.send_to(&answer.finish(), client).await.unwrap();
        }
    }
}
