//! The network between two processes, with its bad days.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use crate::in_background;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From whoever connects.
    Out,
    /// Back to it.
    Back,
}

/// Passes connections on to a port of this host. Dropping it cuts them.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    net: Arc<Net>,
}

#[derive(Debug)]
struct Net {
    state: Mutex<State>,
    changed: Condvar,
    target: u16,
}

#[derive(Debug, Default)]
struct State {
    held: [bool; 2],
    /// Counts cuts: what was read before one is not written after it.
    cuts: u64,
    streams: Vec<TcpStream>,
    is_over: bool,
}

impl Net {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies one way of a connection until either end closes, or it is cut.
    fn copy(&self, mut from: TcpStream, mut to: TcpStream, way: Way, cuts: u64) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut buffer).unwrap_or(0);
            let mut state = self.lock();
            while state.held[way as usize] && state.cuts == cuts && !state.is_over {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let was_cut = state.cuts != cuts || state.is_over;
            drop(state);
            if was_cut || read == 0 || to.write_all(&buffer[..read]).is_err() {
                let _ = to.shutdown(if was_cut { Shutdown::Both } else { Shutdown::Write });
                return;
            }
        }
    }

    fn pass_on(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target)) else { return };
        let mut state = self.lock();
        let cuts = state.cuts;
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
            state.streams.extend(stream.try_clone());
        }
        drop(state);
        let (Ok(client_out), Ok(server_out)) = (client.try_clone(), server.try_clone()) else { return };
        let (net, other) = (self.clone(), self.clone());
        in_background(move || net.copy(client, server_out, Way::Out, cuts));
        in_background(move || other.copy(server, client_out, Way::Back, cuts));
    }
}

impl Proxy {
    /// One that passes on to `target`.
    ///
    /// # Panics
    /// When there is no port to listen at.
    #[must_use]
    pub fn new(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let net = Arc::new(Net { state: Mutex::default(), changed: Condvar::new(), target });
        let accepting = net.clone();
        in_background(move || {
            for client in listener.incoming().flatten() {
                if accepting.lock().is_over {
                    return;
                }
                accepting.pass_on(client);
            }
        });
        Self { port, net }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What goes this way gets stuck; nobody is told.
    pub fn hold(&self, way: Way) -> Stuck<'_> {
        self.net.lock().held[way as usize] = true;
        Stuck(self)
    }

    /// Everything gets stuck.
    pub fn part(&self) -> Stuck<'_> {
        self.net.lock().held = [true; 2];
        Stuck(self)
    }

    fn heal(&self) {
        self.net.lock().held = [false; 2];
        self.net.changed.notify_all();
    }

    /// Ends all connections; what is under way, or stuck, is lost. New ones pass.
    pub fn cut(&self) {
        let mut state = self.net.lock();
        state.cuts += 1;
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.net.changed.notify_all();
    }
}

/// Dropped, it lets everything pass, also what got stuck: a test that fails must not leave programs that nobody can end.
#[must_use]
#[derive(Debug)]
pub struct Stuck<'a>(&'a Proxy);

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.0.heal();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.net.lock().is_over = true;
        self.cut();
        // Wakes the one who accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}
