//! An HTTP front before an object store, which answers as it is told to: late, wrongly, or not at all.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::in_background;

/// Longest head of a request or an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A request for the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// GET, PUT...
    pub method: String,
    /// Path and query, as sent.
    pub path: String,
}

impl Asked {
    /// Whether it is about an object of a volume.
    #[must_use]
    pub fn is_of_object(&self) -> bool {
        self.path.contains("/objects/")
    }
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What the store says.
    Right,
    /// 503 SlowDown; the store is not asked.
    Busy,
    /// The store does it; the connection ends without an answer.
    Lost,
    /// The store does it; the answer does not come until the front goes.
    Held,
    /// Half of the body, under the length of the whole.
    CutOff,
    /// Half of the body, under its own length.
    Short,
}

type Mood = dyn Fn(&Asked) -> Answer + Send + Sync;

/// The front. Dropped, it takes no more connections and lets go of those that it holds.
pub struct Front {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    target: u16,
    mood: Mutex<Arc<Mood>>,
    asked: AtomicU64,
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Front {
    /// One before the store at `target`, which answers what is right.
    ///
    /// # Panics
    /// When there is no port to listen at.
    #[must_use]
    pub fn new(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let right: Arc<Mood> = Arc::new(|_| Answer::Right);
        let (asked, is_over, over) = (AtomicU64::new(0), Mutex::new(false), Condvar::new());
        let shared = Arc::new(Shared { target, mood: Mutex::new(right), asked, is_over, over });
        let accepting = shared.clone();
        in_background(move || {
            for client in listener.incoming().flatten() {
                if *accepting.is_over.lock().unwrap_or_else(PoisonError::into_inner) {
                    return;
                }
                let shared = accepting.clone();
                in_background(move || shared.serve(client));
            }
        });
        Self { port, shared }
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Answers by `mood` from now on.
    pub fn set_mood(&self, mood: impl Fn(&Asked) -> Answer + Send + Sync + 'static) {
        *self.shared.mood.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(mood);
    }

    /// Requests so far.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        *self.shared.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.over.notify_all();
        // Wakes who accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    /// One request: every answer closes its connection.
    fn serve(&self, mut client: TcpStream) {
        let Some((head, mut body)) = read_head(&mut client) else { return };
        let mut words = head.lines().next().unwrap_or_default().split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let asked = Asked { method: method.into(), path: path.into() };
        let missing = length(&head).saturating_sub(body.len());
        let mut rest = vec![0; missing];
        if client.read_exact(&mut rest).is_err() {
            return;
        }
        body.append(&mut rest);
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mood = self.mood.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = mood(&asked);
        if answer == Answer::Busy {
            let text = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
            let head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/xml\r\nConnection: close\r\n";
            let _ = write!(client, "{head}Content-Length: {}\r\n\r\n{text}", text.len());
            return;
        }
        let Some((head, body)) = self.ask(&head, &body) else { return };
        let half = body.len() / 2;
        let _ = match answer {
            Answer::Lost => Ok(()),
            Answer::Held => {
                let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
                while !*is_over {
                    is_over = self.over.wait(is_over).unwrap_or_else(PoisonError::into_inner);
                }
                Ok(())
            }
            Answer::CutOff => client.write_all(head.as_bytes()).and_then(|()| client.write_all(&body[..half])),
            Answer::Short => {
                let is_length = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
                let kept: Vec<&str> = head.trim_end().lines().filter(|line| !is_length(line)).collect();
                let head = format!("{}\r\nContent-Length: {half}\r\n\r\n", kept.join("\r\n"));
                client.write_all(head.as_bytes()).and_then(|()| client.write_all(&body[..half]))
            }
            _ => client.write_all(head.as_bytes()).and_then(|()| client.write_all(&body)),
        };
    }

    /// What the store says.
    fn ask(&self, head: &str, body: &[u8]) -> Option<(String, Vec<u8>)> {
        let mut store = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target)).ok()?;
        let is_connection = |line: &&str| line.to_ascii_lowercase().starts_with("connection:");
        let kept: Vec<&str> = head.trim_end().lines().filter(|line| !is_connection(line)).collect();
        write!(store, "{}\r\nConnection: close\r\n\r\n", kept.join("\r\n")).ok()?;
        store.write_all(body).ok()?;
        let (head, mut body) = read_head(&mut store)?;
        store.read_to_end(&mut body).ok()?;
        Some((head, body))
    }
}

/// The head, its empty line included, and what came with it of the body.
fn read_head(from: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Some((String::from_utf8(bytes).ok()?, body));
        }
        let read = from.read(&mut buffer).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
        if bytes.len() > HEAD_BYTES_MAX {
            return None;
        }
    }
}

/// What the head says of the body's length.
fn length(head: &str) -> usize {
    let of = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    };
    head.lines().find_map(of).unwrap_or(0)
}
