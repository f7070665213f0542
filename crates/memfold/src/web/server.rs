//! HTTP: the page, news for it as server-sent events, and what it asks for.
//!
//! Invariants: connections, headers and bodies are limited in number, size and time. A browser that does not read is left after
//! [`PATIENCE`], and keeps no more of the news in memory than the last.

use super::access::{Access, Readers, Refusal};
use super::json::{self, Said};
use super::model::{Model, News, Order, Unable};
use super::page;
use anyhow::Context;
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    HeaderValue, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use memfold_daemon::token::Token;
use nix::sys::socket::{setsockopt, sockopt};
use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{spawn_blocking, spawn_local, LocalSet};

/// Connections at a time; more are ended at once.
const CONNECTIONS: usize = 64;
/// How long a request may take to arrive, and a connection to be without one.
const ARRIVAL: Duration = Duration::from_secs(10);
/// How long what was sent may lie unread.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest head of a request, bytes, and the most lines in it.
const LONGEST_HEAD: usize = 16 << 10;
const LINES: usize = 64;
/// The longest body of a request, bytes.
const LONGEST_BODY: usize = 4 << 10;
/// How long a wrong token is not answered.
const PENALTY: Duration = Duration::from_millis(500);
/// Threads that wait for what programs answer.
const WAITERS: usize = 4;
/// A browser that lost us comes back after so many milliseconds.
const RETRY_MS: u32 = 2000;

type Body = Either<Full<Bytes>, Channel<Bytes>>;

/// What is served, and to whom.
pub struct Options {
    /// The time between two looks at all programs, at least.
    pub every: Duration,
    /// Whose connections are answered.
    pub readers: Readers,
    /// What lets a browser change something.
    pub token: Option<Token>,
}

/// All that connections share.
struct Shared {
    model: RefCell<Model>,
    /// Somebody wants to know something.
    wanted: Notify,
    access: Access,
    page: String,
    policy: HeaderValue,
}

/// Serves until `stop`; `ready` is called with the address when browsers can connect.
///
/// # Errors
/// The kernel has nothing left to wait with.
pub fn serve(
    listener: TcpListener,
    options: Options,
    ready: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let own = listener.local_addr()?;
    let (page, policy) = page::make();
    let shared = Rc::new(Shared {
        model: RefCell::new(Model::new(options.every, options.token.is_some())),
        wanted: Notify::new(),
        access: Access { token: options.token },
        page,
        policy: HeaderValue::try_from(policy)?,
    });
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().max_blocking_threads(WAITERS).build();
    let runtime = runtime.context("cannot wait for connections")?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        spawn_local(tend(shared.clone()));
        ready(own);
        tokio::select! {
            () = stop => Ok(()),
            error = accept(&listener, &options.readers, &shared) => Err(error),
        }
    })
}

/// Keeps what is known up to date.
async fn tend(shared: Rc<Shared>) {
    loop {
        let pause = shared.model.borrow_mut().step();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.wanted.notified() => {}
        }
    }
}

async fn accept(listener: &tokio::net::TcpListener, readers: &Readers, shared: &Rc<Shared>) -> anyhow::Error {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            // Too many descriptors, or one that left at once: the next look is not at once.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let is_reader = stream.local_addr().is_ok_and(|own| readers.have(peer, own));
        let limited = setsockopt(&stream, sockopt::TcpUserTimeout, &(PATIENCE.as_millis() as u32));
        if limited.is_err() {
            continue;
        }
        let shared = shared.clone();
        spawn_local(async move {
            connection(stream, is_reader, shared).await;
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, is_reader: bool, shared: Rc<Shared>) {
    let service = service_fn(|request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(with_headers(answer(request, is_reader, &shared).await, &shared)) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(ARRIVAL)
        .max_headers(LINES)
        .max_buf_size(LONGEST_HEAD)
        .keep_alive(is_reader);
    // What goes wrong is the browser's affair: it has left, or is told what it did.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// Every answer says that it is for this page alone.
fn with_headers(mut response: Response<Body>, shared: &Shared) -> Response<Body> {
    let fixed = [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ];
    let headers = response.headers_mut();
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CONTENT_SECURITY_POLICY, shared.policy.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn answer(request: Request<Incoming>, is_reader: bool, shared: &Rc<Shared>) -> Response<Body> {
    if !is_reader {
        return said(StatusCode::FORBIDDEN, "this page is another user's; see `memfold help web`");
    }
    if let Err(refusal) = Access::admits(request.headers()) {
        return no(refusal);
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/") => of_kind("text/html; charset=utf-8", shared.page.clone()),
        (&Method::GET, "/events") => events(request.uri().query(), shared),
        (&Method::POST, "/order") => order(request, shared).await,
        (_, "/" | "/events") => not_so("GET"),
        (_, "/order") => not_so("POST"),
        _ => said(StatusCode::NOT_FOUND, "there is nothing here; the page is at /"),
    }
}

fn of_kind(kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(text)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn said(status: StatusCode, words: &str) -> Response<Body> {
    let mut response = of_kind("application/json", json::text(&Said { said: words }));
    *response.status_mut() = status;
    response
}

fn not_so(allowed: &'static str) -> Response<Body> {
    let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "that cannot be done here");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

fn no(refusal: Refusal) -> Response<Body> {
    match refusal {
        Refusal::Host => said(
            StatusCode::MISDIRECTED_REQUEST,
            "this page is at localhost, 127.0.0.1 or [::1]; from another machine, take a tunnel: ssh -L 9275:127.0.0.1:9275 HOST",
        ),
        Refusal::Origin => said(StatusCode::FORBIDDEN, "a page of another site is told nothing"),
        Refusal::ReadOnly => {
            said(StatusCode::FORBIDDEN, "this page is to look at; `memfold web --token-file FILE` lets it change something")
        }
        Refusal::Token => {
            let mut response = said(StatusCode::UNAUTHORIZED, "that is not the token in the file");
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
    }
}

/// News of the list, or of the process that `pid=` names.
fn events(query: Option<&str>, shared: &Rc<Shared>) -> Response<Body> {
    let news = match query {
        None => Ok((shared.model.borrow().list(), "list")),
        Some(query) => {
            let pid = query.strip_prefix("pid=").and_then(|pid| pid.parse().ok());
            let Some(pid) = pid else {
                return said(StatusCode::BAD_REQUEST, "`/events` or `/events?pid=NUMBER` is needed");
            };
            shared.model.borrow_mut().open(pid).map(|news| (news, "process")).ok_or(pid)
        }
    };
    let (news, name) = match news {
        Ok(news) => news,
        Err(pid) => return said(StatusCode::NOT_FOUND, &format!("there is no folded process {pid}")),
    };
    shared.wanted.notify_one();
    let hello = json::text(&shared.model.borrow().hello());
    let (sender, body) = Channel::new(1);
    spawn_local(tell(sender, news, name, hello));
    let mut response = Response::new(Either::Right(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// Tells one browser the news, for as long as it listens.
async fn tell(mut sender: Sender<Bytes>, mut news: Receiver<News>, name: &'static str, hello: String) {
    let event = |name: &str, text: &str| format!("event: {name}\ndata: {text}\n\n");
    let mut drawn = None;
    let mut text = format!("retry: {RETRY_MS}\n{}", event("hello", &hello));
    loop {
        if sender.send_data(Bytes::from(text)).await.is_err() || news.changed().await.is_err() {
            return;
        }
        let news = news.borrow_and_update();
        text = event(name, &news.text);
        if let Some((number, heat)) = news.heat.as_ref().filter(|(number, _)| drawn != Some(*number)) {
            text += &event("heat", heat);
            drawn = Some(*number);
        }
    }
}

/// Has a program do something. An empty order is one to say whether the token is right.
async fn order(request: Request<Incoming>, shared: &Rc<Shared>) -> Response<Body> {
    if let Err(refusal) = shared.access.permits(request.headers()) {
        tokio::time::sleep(PENALTY).await;
        return no(refusal);
    }
    let body = Limited::new(request.into_body(), LONGEST_BODY).collect();
    let Ok(Ok(body)) = tokio::time::timeout(ARRIVAL, body).await else {
        return said(StatusCode::BAD_REQUEST, "an order is at most 4 KiB long, and arrives within 10 s");
    };
    let body = body.to_bytes();
    if body.is_empty() {
        return said(StatusCode::OK, "the token is right");
    }
    let order: Order = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => return said(StatusCode::BAD_REQUEST, &format!("that is no order: {error}")),
    };
    let asked = shared.model.borrow().order(&order);
    let asked = match asked {
        Ok(asked) => asked,
        Err(Unable::Gone(why)) => return said(StatusCode::CONFLICT, &why),
        Err(Unable::Bad(why)) => return said(StatusCode::BAD_REQUEST, &why),
    };
    let (pid, action) = (asked.pid, asked.action);
    let answer = spawn_blocking(move || action.ask(&asked.file, asked.pid)).await;
    shared.model.borrow_mut().draw_soon(pid);
    shared.wanted.notify_one();
    match answer {
        Ok(Ok(())) => said(StatusCode::OK, &format!("done: {}", action.words())),
        Ok(Err(error)) => said(StatusCode::CONFLICT, &format!("{error:#}")),
        Err(_) => said(StatusCode::INTERNAL_SERVER_ERROR, "memfold failed; this is a bug"),
    }
}
