//! Node agents, which follow whether the gateway forwards.

use super::*;

#[test]
fn agents_follow_whether_the_gateway_forwards() {
    let server = Server::start(true);
    server.board.forwarding().publish(forwards(true));
    let mut agent = server.follow();

    let head = agent.head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("content-type: application/x-ndjson\r\n"), "{head}");
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    let begun = crate::service::now();
    let lines: Vec<_> = (0..6).map(|_| agent.line()).collect();
    assert_eq!(lines, [r#"{"forwards":true,"own_destinations":["10.81.0.1/32"]}"#; 6]);
    let took = begun.elapsed();
    assert!(took >= 4 * LineStreams::REPEAT, "{took:?}: the same line is repeated after a while");

    server.board.set_draining();
    let told = crate::service::now();
    let expected = r#"{"forwards":false,"own_destinations":["10.81.0.1/32"]}"#;
    while agent.line() != expected {}
    assert!(told.elapsed() < 10 * LineStreams::REPEAT, "{:?}", told.elapsed());
    assert!(server.board.forwarding().is_followed());
    drop(agent);
    wait_until("it knows that no agent follows", PATIENCE, || {
        Ok(!server.board.forwarding().is_followed())
    })
    .unwrap();
}

/// More agents than the port has connections for others; an idle one is closed after ten seconds in any case.
#[test]
fn agents_displace_neither_scrapes_nor_each_other() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let server = Server::start(true);
    let idle = TcpStream::connect(server.address).unwrap();
    let mut agents = Vec::with_capacity(LineStreams::MAX);
    let follow = |agents: &mut Vec<_>, count| {
        for _ in agents.len()..count {
            let mut agent = server.follow();
            assert!(agent.head().starts_with("HTTP/1.1 200 "));
            agents.push(agent);
        }
    };
    follow(&mut agents, 300);
    idle.set_nonblocking(true).unwrap();
    let kind = idle.peek(&mut [0]).unwrap_err().kind();
    assert_eq!(kind, io::ErrorKind::WouldBlock, "it is still open");
    follow(&mut agents, LineStreams::MAX);

    let refused = server.request("GET /forwarding HTTP/1.1");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.ends_with("1024 clients follow this page: close some of them\n"), "{refused}");
    assert!(server.request("GET /healthz HTTP/1.1").starts_with("HTTP/1.1 200 "));
    server.board.forwarding().publish(forwards(true));
    for agent in &mut agents {
        while !agent.line().contains("true") {}
    }

    agents.pop();
    wait_until("another agent may follow", PATIENCE, || {
        Ok(server.follow().head().starts_with("HTTP/1.1 200 "))
    })
    .unwrap();
}

#[test]
fn two_hundred_agents_cost_little() {
    const TIME: Duration = Duration::from_secs(3);
    let server = Server::start(true);
    let mut agents: Vec<_> = (0..200).map(|_| server.follow()).collect();
    for agent in &mut agents {
        agent.head();
    }

    // The agents do not read meanwhile: the kernel keeps thirty lines for each.
    let before = processor_time();
    thread::sleep(TIME);
    let used = processor_time() - before;

    let share = used.as_secs_f64() / TIME.as_secs_f64();
    assert!(share < 0.25, "{share}");
    for agent in &mut agents {
        for _ in 0..20 {
            agent.line();
        }
    }
}

/// Of all threads of this process.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

/// Bytes that the kernel of a client that does not read has accepted do not count.
#[test]
fn little_waits_for_an_agent_that_never_reads() {
    let server = Server::start(true);
    let mut agent = server.follow();
    agent.head();
    let socket = SockRef::from(agent.0.get_ref());
    socket.set_recv_buffer_size(4096).unwrap();

    // Each is another line: 100 MB in all.
    let long = vec!["10.81.0.1/32".parse().unwrap(); 100_000];
    for number in 0..60 {
        let own_destinations = long[number..].to_vec();
        let forwards = number % 2 == 0;
        server.board.forwarding().publish(Forwarding { forwards, own_destinations });
        thread::sleep(Duration::from_millis(5));
    }
    server.board.forwarding().publish(forwards(true));

    let mut read = 0;
    loop {
        let line = agent.line();
        read += line.len();
        if line.len() < 100 {
            break;
        }
    }
    assert!(read < 10_000_000, "{read}: what was not read is not sent later");
}

/// What an agent gets.
pub(super) struct Agent(pub(super) BufReader<TcpStream>);

impl Agent {
    /// The status line and the headers.
    fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).unwrap(), 0, "{head}");
        }

        head
    }

    /// The next line of the body, which is a chunk.
    fn line(&mut self) -> String {
        let mut line = String::new();
        while !line.starts_with('{') {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the answer has ended");
        }

        line.trim_end().to_owned()
    }
}

fn forwards(forwards: bool) -> Forwarding {
    Forwarding { forwards, own_destinations: vec!["10.81.0.1/32".parse().unwrap()] }
}
