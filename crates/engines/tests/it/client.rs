//! The HTTP client on real sockets: what is told about a failed call, and that no call is made twice.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use http::Request;
use tandem_engines::{
    ClientIdentity, EngineEvent, Engines, EnginesConfig, HttpClient, HttpConfig, ReadError, Resolve,
    Resolving, SendErrorKind, TlsConfig, TlsError, full, read_body,
};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::net::{Fleet, Mode, Net, spec};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn client() -> HttpClient {
    let tls = TlsConfig { without_system_roots: true, ..TlsConfig::default() };
    HttpClient::new(&HttpConfig { tls, ..HttpConfig::default() }).expect("a client")
}

fn post(to: SocketAddr) -> Request<tandem_engines::Body> {
    Request::post(format!("http://{to}/v1/x")).body(full("hello")).expect("a request")
}

/// An engine on a thread of its own: for each connection `script` gets the socket and the connection's number.
fn engine(script: impl Fn(TcpStream, usize) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for (number, socket) in listener.incoming().enumerate() {
            script(socket.expect("a connection"), number);
        }
    });
    address
}

/// Reads one request head and its 5-byte body.
fn read_request(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\nhello") {
        if socket.read(&mut byte).expect("readable") == 0 {
            break;
        }
        text.push(byte[0]);
    }
    String::from_utf8(text).expect("ascii")
}

#[tokio::test]
async fn refused_is_never_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let error = client().send(post(address)).await.expect_err("nobody listens");
    assert_eq!((error.kind, error.never_sent), (SendErrorKind::Connect, true));
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_hang_up_after_the_request_may_have_done_the_work() {
    let address = engine(|mut socket, _| {
        read_request(&mut socket);
    });
    let error = client().send(post(address)).await.expect_err("hung up");
    assert_eq!((error.kind, error.never_sent), (SendErrorKind::Disconnected, false));
    assert!(!error.reused_connection);
}

#[tokio::test]
async fn garbage_is_garbage() {
    for answer in ["SSH-2.0-OpenSSH_9.9\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\nbad header\r\n\r\n"]
    {
        let address = engine(move |mut socket, _| {
            read_request(&mut socket);
            let _ = socket.write_all(answer.as_bytes());
        });
        let error = client().send(post(address)).await.expect_err("not http");
        assert_eq!((error.kind, error.never_sent), (SendErrorKind::Garbage, false), "{answer:?}");
    }
}

#[tokio::test]
async fn no_head_in_time_is_a_timeout_and_closes_the_connection() {
    let (tx, mut rx) = unbounded_channel();
    let address = engine(move |mut socket, _| {
        read_request(&mut socket);
        // Ends when the client closes.
        let _ = tx.send(socket.read(&mut [0]));
    });
    let error = client().send_within(post(address), Duration::from_millis(50)).await.expect_err("too slow");
    assert_eq!((error.kind, error.never_sent), (SendErrorKind::Timeout, false));
    let end = rx.recv().await.expect("the engine saw the end");
    assert_eq!(end.expect("a clean end"), 0);
}

// I-HOP-1.
// I-CLI-3.
#[tokio::test]
async fn a_dropped_answer_closes_the_connection() {
    let (tx, mut rx) = unbounded_channel();
    let address = engine(move |mut socket, _| {
        read_request(&mut socket);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n");
        let _ = tx.send(socket.read(&mut [0]));
    });
    let response = client().send(post(address)).await.expect("an answer");
    drop(response);
    let end = rx.recv().await.expect("the engine saw the end");
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

// I-HOP-3.
// I-CLI-1.
#[tokio::test]
async fn an_idle_connection_that_the_engine_closed_costs_nothing() {
    let (tx, rx) = mpsc::channel();
    let (closed, mut closed_rx) = unbounded_channel();
    let address = engine(move |mut socket, number| {
        let request = read_request(&mut socket);
        tx.send((number, request)).expect("the test listens");
        let _ = socket.write_all(OK);
        // What an engine's keep-alive limit does.
        drop(socket);
        let _ = closed.send(());
    });
    let client = client();
    for _ in 0..3 {
        let response = client.send(post(address)).await.expect("an answer");
        read_body(response.into_body(), 10).await.expect("a body");
        closed_rx.recv().await.expect("the engine closed");
        turn_the_reactor().await;
    }
    let seen: Vec<usize> = rx.try_iter().filter(|(_, r)| r.starts_with("POST")).map(|(n, _)| n).collect();
    assert_eq!(seen.len(), 3, "each call was made once: {seen:?}");
}

/// Lets the runtime look at its sockets, which it does after at most 61 steps.
async fn turn_the_reactor() {
    for _ in 0..128 {
        tokio::task::yield_now().await;
    }
}

// I-HOP-3.
// I-CLI-1, I-CLI-2.
#[tokio::test]
async fn a_call_lost_on_a_reused_connection_is_reported_and_not_repeated() {
    let (tx, rx) = mpsc::channel();
    let address = engine(move |mut socket, number| {
        tx.send((number, read_request(&mut socket))).expect("the test listens");
        let _ = socket.write_all(OK);
        if number == 0 {
            // The second call arrives on this connection, is read, and the engine dies.
            tx.send((number, read_request(&mut socket))).expect("the test listens");
        }
    });
    let client = client();
    let response = client.send(post(address)).await.expect("an answer");
    read_body(response.into_body(), 10).await.expect("a body");
    let error = client.send(post(address)).await.expect_err("lost");
    assert_eq!((error.kind, error.never_sent), (SendErrorKind::Disconnected, false));
    assert!(error.reused_connection);
    let seen: Vec<usize> = rx.try_iter().map(|(n, _)| n).collect();
    assert_eq!(seen, [0, 0], "no second connection was tried");
}

/// An engine that serves each connection on a thread of its own: one answer to the first call when `together`
/// connections have one, then what comes next on the connection.
fn engine_of_single_answers(together: usize) -> (SocketAddr, UnboundedReceiver<std::io::Result<usize>>) {
    let (tx, rx) = unbounded_channel();
    let barrier = Arc::new(Barrier::new(together));
    let address = engine(move |mut socket, _| {
        let (tx, barrier) = (tx.clone(), Arc::clone(&barrier));
        std::thread::spawn(move || {
            read_request(&mut socket);
            barrier.wait();
            let _ = socket.write_all(OK);
            let _ = tx.send(socket.read(&mut [0]));
            let _ = socket.write_all(OK);
        });
    });
    (address, rx)
}

async fn next(rx: &mut UnboundedReceiver<std::io::Result<usize>>) -> usize {
    let next = tokio::time::timeout(Duration::from_secs(60), rx.recv()).await.expect("in time");
    next.expect("the engine lives").expect("a clean end")
}

// I-HOP-2.
#[tokio::test]
async fn idle_connections_are_closed_in_time_without_further_calls() {
    let (address, mut rx) = engine_of_single_answers(1);
    let tls = TlsConfig { without_system_roots: true, ..TlsConfig::default() };
    let config = HttpConfig { tls, pool_idle_timeout: Duration::from_millis(20), ..HttpConfig::default() };
    let client = HttpClient::new(&config).expect("a client");
    let response = client.send(post(address)).await.expect("an answer");
    read_body(response.into_body(), 10).await.expect("a body");
    assert_eq!(next(&mut rx).await, 0, "closed");
    drop(client);
}

// I-HOP-2.
#[tokio::test]
async fn idle_connections_are_bounded_and_the_last_used_one_is_used_next() {
    let (address, mut rx) = engine_of_single_answers(2);
    let tls = TlsConfig { without_system_roots: true, ..TlsConfig::default() };
    let config = HttpConfig {
        tls,
        pool_max_idle_per_engine: 1,
        pool_idle_timeout: Duration::from_secs(600),
        ..HttpConfig::default()
    };
    let client = HttpClient::new(&config).expect("a client");
    let (a, b) = tokio::join!(client.send(post(address)), client.send(post(address)));
    for response in [a, b] {
        read_body(response.expect("an answer").into_body(), 10).await.expect("a body");
    }
    assert_eq!(next(&mut rx).await, 0, "the first that became idle had to go");
    client.send(post(address)).await.expect("an answer on the other one");
    assert_eq!(next(&mut rx).await, 1, "a byte of the third call");
}

// I-CLI-4.
#[tokio::test]
async fn redirects_come_back_as_they_are() {
    let address = engine(|mut socket, _| {
        read_request(&mut socket);
        let _ =
            socket.write_all(b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n");
    });
    assert_eq!(client().send(post(address)).await.expect("an answer").status(), 307);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_engine_fails_in_time_and_was_never_sent() {
    let net = Net::new();
    net.set("far:1", Mode::Unreachable);
    let request = Request::post("http://far:1/x").body(full("hello")).expect("a request");
    let error = net.client().send(request).await.expect_err("unreachable");
    assert_eq!((error.kind, error.never_sent), (SendErrorKind::Connect, true));
    assert_eq!(net.now(), HttpConfig::default().connect_timeout);
}

#[tokio::test]
async fn a_request_that_cannot_be_sent_is_the_callers_fault() {
    let request = Request::get("/no-host").body(full("")).expect("a request");
    let error = client().send(request).await.expect_err("no host");
    assert_eq!((error.kind, error.never_sent), (SendErrorKind::Request, true));
}

#[tokio::test]
async fn bodies_are_bounded() {
    let address = engine(|mut socket, _| {
        read_request(&mut socket);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcdef");
    });
    let body = || async { client().send(post(address)).await.expect("an answer").into_body() };
    assert_eq!(read_body(body().await, 6).await.expect("fits"), "abcdef");
    assert!(matches!(read_body(body().await, 5).await, Err(ReadError::TooLarge(5))));
}

#[tokio::test]
async fn http2_is_spoken_to_engines_that_are_known_to_speak_it() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("a connection");
        let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
            let body = format!("{:?}", request.version());
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        });
        let executor = hyper_util::rt::TokioExecutor::new();
        let io = hyper_util::rt::TokioIo::new(socket);
        let _ = hyper::server::conn::http2::Builder::new(executor).serve_connection(io, service).await;
    });
    let config = HttpConfig { http2_prior_knowledge: true, ..HttpConfig::default() };
    let response = HttpClient::new(&config).expect("a client").send(post(address)).await.expect("an answer");
    assert_eq!(read_body(response.into_body(), 100).await.expect("a body"), "HTTP/2.0");
}

const CA: &[u8] = include_bytes!("../fixtures/tls/ca.pem");
const CERT: &[u8] = include_bytes!("../fixtures/tls/server.pem");
const KEY: &[u8] = include_bytes!("../fixtures/tls/server.key");

/// An engine with a certificate for `engine.test`, ready to answer as vLLM's health and model routes do.
async fn tls_engine() -> SocketAddr {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = CertificateDer::pem_slice_iter(CERT).collect::<Result<_, _>>().expect("certificates");
    let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("protocols")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a server");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(socket).await else { return };
                let service = hyper::service::service_fn(|_| async {
                    let body = http_body_util::Full::new(bytes::Bytes::from_static(b"{\"data\":[]}"));
                    Ok::<_, std::convert::Infallible>(http::Response::new(body))
                });
                let io = hyper_util::rt::TokioIo::new(stream);
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            });
        }
    });
    address
}

fn tls_client(tls: TlsConfig) -> HttpClient {
    HttpClient::new(&HttpConfig { tls, ..HttpConfig::default() }).expect("a client")
}

fn trusting() -> TlsConfig {
    TlsConfig { extra_ca_pem: Some(CA.to_vec()), without_system_roots: true, ..TlsConfig::default() }
}

/// Every name leads to one address.
struct Always(SocketAddr);

impl Resolve for Always {
    fn resolve<'a>(&'a self, _: &'a str, _: u16) -> Resolving<'a> {
        Box::pin(async move { Ok(vec![self.0]) })
    }
}

// I-DNS-4.
#[tokio::test]
async fn certificates_of_engines_found_by_name_are_checked_against_the_name() {
    let address = tls_engine().await;
    for (name, ready) in [("engine.test", true), ("other.test", false)] {
        let (tx, rx) = tokio::sync::mpsc::channel(64);
        let engines = Engines::start_with_resolver(
            EnginesConfig::default(),
            tls_client(trusting()),
            vec![spec(&format!("dns+https://{name}:{}", address.port()))],
            tx,
            Arc::new(Always(address)),
        );
        let mut fleet = Fleet::with(engines.clone(), rx);
        if ready {
            assert!(matches!(fleet.next().await, EngineEvent::Up { .. }));
        } else {
            let failed = async {
                loop {
                    if let Some(error) = engines.list().first().and_then(|s| s.last_error.clone()) {
                        return error.text;
                    }
                    tokio::task::yield_now().await;
                }
            };
            let error =
                tokio::time::timeout(Duration::from_secs(60), failed).await.expect("an error in time");
            assert!(error.contains("certificate"), "{error}");
        }
        engines.shutdown().await;
    }
}

#[tokio::test]
async fn trust_is_what_the_configuration_says() {
    let address = tls_engine().await;
    let get = || Request::get(format!("https://{address}/")).body(full("")).expect("a request");
    // The certificate is for a name, the URL has an address.
    let error = tls_client(trusting()).send(get()).await.expect_err("another name");
    assert_eq!((error.kind, error.never_sent), (SendErrorKind::Connect, true));
    let strict = TlsConfig { without_system_roots: true, ..TlsConfig::default() };
    tls_client(strict).send(get()).await.expect_err("unknown authority");
    let insecure = TlsConfig { insecure_skip_verify: true, ..TlsConfig::default() };
    assert_eq!(tls_client(insecure).send(get()).await.expect("an answer").status(), 200);
}

#[test]
fn unusable_certificates_are_named() {
    let new = |tls| HttpClient::new(&HttpConfig { tls, ..HttpConfig::default() }).map(|_| ());
    let base = || TlsConfig { without_system_roots: true, ..TlsConfig::default() };
    let bad_ca = new(TlsConfig { extra_ca_pem: Some(b"nonsense".to_vec()), ..base() });
    assert!(matches!(bad_ca, Err(TlsError::ExtraCa(_))), "{bad_ca:?}");
    let identity = |cert: &[u8], key: &[u8]| {
        let identity = ClientIdentity { cert_pem: cert.to_vec(), key_pem: key.to_vec() };
        new(TlsConfig { client_identity_pem: Some(identity), ..base() })
    };
    assert!(matches!(identity(CERT, b"nonsense"), Err(TlsError::ClientIdentity(_))));
    assert!(matches!(identity(CA, KEY), Err(TlsError::ClientIdentity(_))), "key and certificate do not fit");
    identity(CERT, KEY).expect("a fitting pair");
}
