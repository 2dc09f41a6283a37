//! FUSE over io_uring: what stands in an entry's header and in a command.

use super::wire;

/// `FUSE_IO_URING_CMD_REGISTER`: a new entry, which waits for a request.
pub const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: the answer to an entry's request, whereupon it waits for the next one.
pub const COMMIT_AND_FETCH: u32 = 2;

/// Where the structure of the opcode stands in `struct fuse_uring_req_header`; before it is the header of the request or of the answer.
pub const OP_IN: usize = 128;
/// `FUSE_URING_OP_IN_OUT_SZ`: bytes that it has at most.
pub const OP_IN_BYTES: usize = 128;
/// Where [`EntInOut`] stands in it.
pub const ENT_IN_OUT: usize = OP_IN + OP_IN_BYTES;
/// Bytes of `struct fuse_uring_req_header`.
pub const HEADER_BYTES: usize = ENT_IN_OUT + size_of::<EntInOut>();

wire! {
    /// `struct fuse_uring_ent_in_out`
    EntInOut = 32 { flags: u64, commit_id: u64, payload_size: u32, padding: u32, reserved: u64 }
    /// `struct fuse_uring_cmd_req`, which begins the 80 bytes of a command
    CmdReq = 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}
