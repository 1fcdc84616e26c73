//! The network: nodes, their pods, and the fabric between them.

use super::*;
use crate::harness::relay::relay;

/// A pod on a node: its address is on no network, and the node has a route to it.
pub(super) fn pod(node: &Namespace, number: usize, link: &str, host: u8) -> Namespace {
    // Gateways forward; others are not asked to.
    let pod = Namespace::router(format!("{link} of {}", node.name())).unwrap();
    let address = IpAddr::from([10, 244, byte(number), host]);
    connect((node, link), (&pod, "eth0"), MTU).unwrap();
    pod.add_address("eth0", net(address, 32)).unwrap();
    node.add_route(net(address, 32), link, Via::Link).unwrap();
    // What a node has for its pods in every CNI that gives them a link each.
    node.add_address(link, net([169, 254, byte(number), host], 32)).unwrap();
    let router = IpAddr::from([169, 254, byte(number), host]);
    pod.add_route(net([0, 0, 0, 0], 0), "eth0", Via::Router(router)).unwrap();

    let address = pod_address_ipv6(number, host);
    pod.add_address("eth0", net(address, 128)).unwrap();
    node.add_route(net(address, 128), link, Via::Link).unwrap();
    let router: IpAddr =
        [0xfd00, 0x169, 0, u16::from(byte(number)), 0, 0, 0, u16::from(host)].into();
    node.add_address(link, net(router, 128)).unwrap();
    pod.add_route(net(Ipv6Addr::UNSPECIFIED, 0), "eth0", Via::Router(router)).unwrap();

    pod
}

/// Node 1 and 2 on one network, node 3 on another one; pods are routed by the fabric.
pub(super) fn wire(fabric: &Namespace, nodes: &[Arc<Namespace>]) {
    fabric.bridge("bridge", &["port1", "port2"]).unwrap();
    fabric.add_address("bridge", net([172, 18, 0, 254], 24)).unwrap();
    fabric.add_address("port3", net([172, 18, 3, 254], 24)).unwrap();
    let routers = [0, 3].map(|network| IpAddr::from([0xfd00, 0x18, network, 0, 0, 0, 0, 0xfe]));
    fabric.add_address("bridge", net(routers[0], 64)).unwrap();
    fabric.add_address("port3", net(routers[1], 64)).unwrap();
    for (node, number) in nodes.iter().zip(1..) {
        let (address, router) = (node_address_ipv6(number), routers[usize::from(number == 3)]);
        let port = if number == 3 { "port3" } else { "bridge" };
        node.add_address("uplink", net(address, 64)).unwrap();
        let default = net(Ipv6Addr::UNSPECIFIED, 0);
        node.add_route(default, "uplink", Via::Router(router)).unwrap();
        let pods = net(pod_address_ipv6(number, 0), 64);
        fabric.add_route(pods, port, Via::Router(address)).unwrap();

        let address = node_address(number);
        node.add_address("uplink", net(address, 24)).unwrap();
        let (router, port) = match number {
            3 => (IpAddr::from([172, 18, 3, 254]), "port3"),
            _ => (IpAddr::from([172, 18, 0, 254]), "bridge"),
        };
        node.add_route(net([0, 0, 0, 0], 0), "uplink", Via::Router(router)).unwrap();
        let pods = net([10, 244, byte(number), 0], 24);
        fabric.add_route(pods, port, Via::Router(address)).unwrap();
    }
}

/// Makes the API server reachable on the loopback of `node`.
pub(super) fn forward(node: &Namespace, port: u16) {
    let listener = node.run(move || Ok(TcpListener::bind(("127.0.0.1", port)).unwrap())).unwrap();
    // Ends with the test.
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { return };
            relay(&near, &far);
        }
    });
}
