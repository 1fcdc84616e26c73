//! One lookup: the addresses of a name, and how long they hold.
//!
//! The system's resolver says where a name leads: it alone knows `/etc/hosts`, `nsswitch.conf` and
//! whatever else the host has, and it treats the search domains of a pod as everything else there does.
//! It has no TTLs, so the DNS is asked for those afterwards, with the same `/etc/resolv.conf`; its cache
//! has the answer by then. A name that the DNS does not know has no TTL, and is looked up at intervals.
//!
//! The `domain` crate asks, which is three crates more in all. `hickory-resolver` would have been
//! forty-eight, with Unicode tables and a cache that nobody here wants.

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

/// After this a lookup counts as failed. The system's resolver gives up after 5 s a server.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(20);

/// How long an answer waits for its TTL, which is good to know and no more.
const TTL_TIMEOUT: Duration = Duration::from_millis(500);

/// Where a name leads.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolved {
    /// The best first.
    pub(super) addresses: Vec<SocketAddr>,
    /// How long that holds, if anybody knows.
    pub(super) ttl: Option<Duration>,
}

/// Asks the system where `target` is.
///
/// # Errors
///
/// What the system says, or that it took too long.
pub(super) async fn look_up(target: &HostPort) -> io::Result<Resolved> {
    let found = timeout(LOOKUP_TIMEOUT, lookup_host((&*target.host, target.port))).await;
    let addresses: Vec<_> = found.map_err(|_| io::ErrorKind::TimedOut)??.collect();
    let ttl = timeout(TTL_TIMEOUT, ttl(&target.host, ResolvConf::default())).await;

    Ok(Resolved { addresses, ttl: ttl.ok().flatten() })
}

/// How long the addresses of `host` hold, as the DNS servers of `conf` say.
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

/// The least TTL of an answer, aliases on the way included; `None` if it has no address.
fn ttl_of_addresses(answer: &Answer) -> Option<Duration> {
    let section = answer.answer().ok()?;
    let has_address = section.limit_to::<A>().flatten().next().is_some()
        || section.limit_to::<Aaaa>().flatten().next().is_some();
    let ttls = section.flatten().map(|record| record.ttl().into_duration());

    if has_address { ttls.min() } else { None }
}

/// The names that `host` may stand for, in the order in which resolvers try them (resolv.conf(5),
/// `ndots`).
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

    /// What a pod has.
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

    /// A socket to answer at, and what leads to it.
    async fn server() -> (ResolvConf, UdpSocket) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut conf = ResolvConf::new();
        conf.parse(&mut "search wrong.example example\n".as_bytes()).unwrap();
        conf.servers = vec![ServerConf::new(socket.local_addr().unwrap(), Transport::UdpTcp)];
        conf.finalize();

        (conf, socket)
    }

    /// Knows that rome.example is an alias for 60 s of what has an address for 30 s. Nothing else.
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
