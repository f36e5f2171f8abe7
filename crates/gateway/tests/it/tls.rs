//! TLS towards clients: HTTP/1.1 and HTTP/2, and certificates read again.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tandem_gateway::config::Tls;
use tokio::net::TcpStream;

use crate::engine::{Engine, chat_stream};
use crate::setup::{Setup, chat, outcome, start, start_with};

const CA: &[u8] = include_bytes!("../fixtures/tls/ca.pem");
const CERT: &[u8] = include_bytes!("../fixtures/tls/server.pem");
const KEY: &[u8] = include_bytes!("../fixtures/tls/server.key");

async fn connect(setup: &Setup, alpn: &[u8]) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(CA) {
        roots.add(cert.expect("a certificate")).expect("usable");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(setup.addr()).await.expect("connects");
    let name = ServerName::try_from("engine.test").expect("a name");
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake")
}

fn request(version: http::Version) -> http::Request<Full<Bytes>> {
    http::Request::builder()
        .method("POST")
        .version(version)
        .uri("https://engine.test/v1/chat/completions")
        .header("host", "engine.test")
        .body(Full::new(chat("hi", true).to_string().into()))
        .expect("a request")
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_of_http_are_spoken_over_tls() {
    let engine = Engine::fine().await;
    let keys = tempfile::tempdir().expect("a temporary folder");
    let (cert, key) = (keys.path().join("cert.pem"), keys.path().join("key.pem"));
    std::fs::write(&cert, CERT).expect("written");
    std::fs::write(&key, KEY).expect("written");
    let setup = start_with(&[&engine], |config| {
        config.tls =
            Some(Tls { cert: cert.to_string_lossy().into_owned(), key: key.to_string_lossy().into_owned() });
    })
    .await;

    let io = TokioIo::new(connect(&setup, b"h2").await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("http/2");
    tokio::spawn(connection);
    let answer = sender.send_request(request(http::Version::HTTP_2)).await.expect("an answer");
    assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, chat_stream(false).concat());

    // A key that does not fit leaves the old ones in use.
    std::fs::write(&key, "nonsense").expect("written");
    setup.gateway.reload_certificates();
    let io = TokioIo::new(connect(&setup, b"http/1.1").await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("http/1.1");
    tokio::spawn(connection);
    let mut plain = request(http::Version::HTTP_11);
    *plain.uri_mut() = http::Uri::from_static("/v1/chat/completions");
    let answer = sender.send_request(plain).await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, chat_stream(false).concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_http2_that_is_reset_stops_the_engine() {
    let engine = Engine::start(|call| Box::pin(async move { call.gone().await })).await;
    let setup = start(&[&engine]).await;
    let stream = TcpStream::connect(setup.addr()).await.expect("connects");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("http/2");
    tokio::spawn(connection);
    let answer = sender.send_request(request(http::Version::HTTP_2));
    let abandoned = tokio::spawn(answer);
    engine.wait_calls(1).await;
    abandoned.abort();
    engine.wait_gone(1).await;
    setup.idle().await;
    let rows = setup.rows().await;
    assert_eq!(outcome(&rows[0]).1, "client_gone");
}
