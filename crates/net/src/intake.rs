//! Large bodies on their way in: read from the socket straight into the buffers that their users get.

use bytes::{BufMut, Bytes};
use sluice_base::{Page, Pages};
use sluice_run::net::TcpStream;
use sluice_wire::{Connection, Kind, RequestId};
use std::{io, sync::Arc, time::Duration};

/// The body that is being received, if one is.
pub(crate) struct Intake {
    pages: Arc<Pages>,
    body: Option<(Page, usize)>,
    /// The answer whose body has just begun.
    begun: Option<RequestId>,
}

impl Intake {
    /// For a lane whose bodies go into buffers of `pages`.
    pub(crate) fn new(pages: Arc<Pages>) -> Self {
        Self { pages, body: None, begun: None }
    }

    /// One read from the stream; returns the bytes that came. What they do to the connection is an event of it.
    pub(crate) fn read(&mut self, stream: &TcpStream, connection: &mut Connection, now: Duration) -> io::Result<usize> {
        let Some(header) = connection.expects_body() else {
            self.body = None;
            return read_header(stream, connection, now);
        };
        let length = header.length as usize;
        if self.body.is_none() && header.kind == Kind::Reply {
            self.begun = Some(RequestId(header.id));
        }
        let (page, filled) = self.body.get_or_insert_with(|| (self.pages.take(length), 0));
        let came = stream.try_read(&mut page.as_mut()[*filled..])?;
        *filled += came;
        if *filled == length
            && let Some((page, _)) = self.body.take()
        {
            // An error is an event too.
            let _ = connection.handle_body(now, Bytes::from_owner(page));
        } else if came > 0 {
            connection.handle_heard(now);
        }
        Ok(came)
    }
}

impl Intake {
    /// The answer that has begun since this was last asked.
    pub(crate) fn begun(&mut self) -> Option<RequestId> {
        self.begun.take()
    }
}

/// Reads what is not the body of a frame, and nothing of the body behind it.
fn read_header(stream: &TcpStream, connection: &mut Connection, now: Duration) -> io::Result<usize> {
    let missing = connection.header_bytes_missing();
    // Before it is open a peer may send several frames together, and the rest of such a body is awaited as part of the stream.
    let most = if connection.is_open() && missing > 0 { missing } else { usize::MAX };
    let came = stream.try_read_buf(&mut connection.input().limit(most))?;
    if came > 0 {
        let _ = connection.handle_received(now);
    }
    Ok(came)
}
