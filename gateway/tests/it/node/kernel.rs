//! What the kernel of a namespace has of ours, and of others.

use std::collections::BTreeSet;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::route::RouteAttribute;
use rtnetlink::packet_route::rule::RuleAttribute;
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use strait_lab::Namespace;

/// The letter S.
const PROTOCOL: u8 = 83;

/// How much of it there is, for IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ours {
    pub(crate) routes: usize,
    pub(crate) rules: usize,
}

pub(crate) fn ours(namespace: &Namespace) -> Ours {
    ask(namespace, async |handle| Ours {
        routes: routes(&handle).await.iter().filter(|(protocol, _)| *protocol == PROTOCOL).count(),
        rules: rules(&handle).await.iter().filter(|(protocol, _)| *protocol == PROTOCOL).count(),
    })
}

/// Everything else, as text.
pub(crate) fn foreign(namespace: &Namespace) -> BTreeSet<String> {
    ask(namespace, async |handle| {
        let all = routes(&handle).await.into_iter().chain(rules(&handle).await);
        all.filter(|(protocol, _)| *protocol != PROTOCOL).map(|(_, text)| text).collect()
    })
}

async fn routes(handle: &Handle) -> Vec<(u8, String)> {
    let all = RouteMessageBuilder::<std::net::Ipv4Addr>::new().build();
    let routes: Vec<_> = handle.route().get(all).execute().try_collect().await.unwrap();

    routes
        .into_iter()
        .map(|mut route| {
            // Counts down all the time.
            route.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::CacheInfo(_)));
            (route.header.protocol.into(), format!("{route:?}"))
        })
        .collect()
}

async fn rules(handle: &Handle) -> Vec<(u8, String)> {
    let rules: Vec<_> = handle.rule().get(IpVersion::V4).execute().try_collect().await.unwrap();

    rules
        .into_iter()
        .map(|rule| {
            let protocol = rule.attributes.iter().find_map(|attribute| {
                let RuleAttribute::Protocol(protocol) = attribute else { return None };
                Some(u8::from(*protocol))
            });
            (protocol.unwrap_or_default(), format!("{rule:?}"))
        })
        .collect()
}

pub(crate) fn ask<T: Send + 'static>(
    namespace: &Namespace,
    question: impl AsyncFnOnce(Handle) -> T + Send + 'static,
) -> T {
    namespace
        .run(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            Ok(runtime.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().unwrap();
                tokio::spawn(connection);
                question(handle).await
            }))
        })
        .unwrap()
}
