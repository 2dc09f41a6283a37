//! What one TCP connection gives at most, with no protocol: sendfile on one side, read(2) on the other.

use super::control::micros;
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs::File,
    io::{self, Read},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Sends `total` bytes of `file`, its first `file_bytes` again and again, to the first who connects; returns the port. The
/// processor time of the thread that sends is put into `used_us`.
pub(super) fn serve(
    file: File,
    file_bytes: u64,
    total: u64,
    step: usize,
    used_us: Arc<AtomicU64>,
    at: SocketAddr,
) -> io::Result<u16> {
    let listener = TcpListener::bind(SocketAddr::new(at.ip(), 0))?;
    let port = listener.local_addr()?.port();
    std::thread::Builder::new().name("raw-sender".into()).spawn(move || {
        let Ok((stream, _)) = listener.accept() else { return };
        let _ = send(&stream, &file, file_bytes, total, step);
        used_us.store(micros(clock_gettime(ClockId::ThreadCPUTime)), Ordering::Release);
    })?;
    Ok(port)
}

fn send(stream: &TcpStream, file: &File, file_bytes: u64, total: u64, step: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut sent, mut offset) = (0, 0);
    while sent < total {
        if offset + step as u64 > file_bytes {
            offset = 0;
        }
        let count = rustix::fs::sendfile(stream, file, Some(&mut offset), step)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        sent += count as u64;
    }
    Ok(())
}

/// Reads everything that `address` sends, `step` bytes at a time; returns bytes per second.
pub(super) fn read(address: SocketAddr, total: u64, step: usize) -> io::Result<f64> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (mut buffer, mut came, began) = (vec![0; step], 0, now());
    while came < total {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => came += count as u64,
        }
    }
    Ok(came as f64 / began.elapsed().as_secs_f64())
}

#[allow(clippy::disallowed_methods, reason = "a measurement is of this clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}
