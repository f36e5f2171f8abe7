//! A bare hyper proxy: takes the call, passes the body on as it comes, passes the answer back. No parsing, no
//! state: the least that an HTTP/1 gateway in this language and library can cost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

/// Serves for ever.
pub async fn serve(listen: SocketAddr, upstreams: Vec<SocketAddr>) -> Result<()> {
    ensure!(!upstreams.is_empty(), "a proxy needs an upstream");
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    let upstreams = Arc::new(upstreams);
    let next = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (client, upstreams, next) = (client.clone(), Arc::clone(&upstreams), Arc::clone(&next));
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let upstream = upstreams[next.fetch_add(1, Ordering::Relaxed) % upstreams.len()];
                pass(client.clone(), upstream, request)
            });
            // A connection that a client drops is no fault of the proxy.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn pass(
    client: Client<HttpConnector, Incoming>,
    upstream: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<Incoming>> {
    let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
    *request.uri_mut() = format!("http://{upstream}{path}").parse::<Uri>()?;
    Ok(client.request(request).await?)
}
