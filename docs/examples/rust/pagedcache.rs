//! A small safe binding to pagedcache.h, to copy and extend; no crates. docs/examples/rust/decode.rs uses it.
//!
//! The structs stand as in the header, field by field. Of the table, functions that are not used here are only
//! places of the right size.
#![allow(dead_code)]

use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::{null, null_mut};

const API_VERSION: i32 = 1;

/// Memory of the caller's, whose lifetime this binding does not follow: always none.
#[repr(transparent)]
#[derive(Clone)]
pub struct NoLayers(*const c_void);

impl Default for NoLayers {
    fn default() -> Self {
        NoLayers(null())
    }
}

#[repr(C)]
#[derive(Clone, Default)]
pub struct Config {
    pub num_layers: i32,
    pub num_blocks: i32,
    pub block_size: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    pub v_head_dim: i32,
    pub dtype: i32,
    pub layout: i32,
    pub max_sequences: i32,
    pub max_length: i32,
    pub threads: i32,
    pub layers: NoLayers,
}

pub const FLOAT32: i32 = 0;
pub const FLOAT16: i32 = 1;
pub const BFLOAT16: i32 = 2;

#[repr(C)]
#[derive(Default, Debug)]
pub struct Stats {
    pub num_blocks: i32,
    pub free_blocks: i32,
    pub used_blocks: i32,
    pub shared_blocks: i32,
    pub num_sequences: i32,
    pub max_sequences: i32,
    pub memory_bytes: i64,
}

#[repr(C)]
struct Tensors {
    q: *const f32,
    k: *const f32,
    v: *const f32,
    out: *mut f32,
    lse: *mut f32,
    q_heads: i32,
    q_dtype: i32,
    kv_dtype: i32,
    out_dtype: i32,
    window: i64,
    sink_tokens: i64,
}

#[repr(C)]
struct StepHead {
    num_sequences: i32,
    num_tokens: i32, // and more, which this binding does not read
}

type Handle = *mut c_void;
type NotUsed = *const c_void;

#[repr(C)]
struct Api {
    version: i32,
    size: i32,
    error: unsafe extern "C" fn() -> *const c_char,
    isa: unsafe extern "C" fn() -> *const c_char,
    attention: [NotUsed; 5], // plan_make, plan_free, write, attend, copy_blocks
    open: unsafe extern "C" fn(*const Config, *mut Handle) -> c_int,
    close: unsafe extern "C" fn(Handle),
    layer: NotUsed,
    start: unsafe extern "C" fn(Handle, i32, *mut i64) -> c_int,
    extend: unsafe extern "C" fn(Handle, i32, *const i64, *const i32) -> c_int,
    can_extend: unsafe extern "C" fn(Handle, i32, *const i64, *const i32) -> c_int,
    step: unsafe extern "C" fn(Handle) -> *const StepHead,
    copies: NotUsed,
    attend_step: unsafe extern "C" fn(Handle, i32, *const Tensors, *const c_void) -> c_int,
    commit: unsafe extern "C" fn(Handle) -> c_int,
    abandon: unsafe extern "C" fn(Handle) -> c_int,
    fork: unsafe extern "C" fn(Handle, i64, i64, *mut i64) -> c_int,
    truncate: unsafe extern "C" fn(Handle, i32, *const i64, *const i32) -> c_int,
    release: unsafe extern "C" fn(Handle, i32, *const i64) -> c_int,
    length: unsafe extern "C" fn(Handle, i64) -> i64,
    stats: unsafe extern "C" fn(Handle, *mut Stats),
    check: unsafe extern "C" fn(Handle) -> c_int,
}

#[link(name = "pagedcache")]
extern "C" {
    fn pagedcache_get_api(version: i32) -> *const Api;
}

/// What a call returned, and why.
#[derive(Debug)]
pub struct Error {
    pub status: i32,
    pub why: String,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

fn error(status: i32, why: &str) -> Error {
    Error { status, why: why.to_string() }
}

fn api() -> Result<&'static Api> {
    unsafe { pagedcache_get_api(API_VERSION).as_ref() }.ok_or_else(|| error(8, "libpagedcache is too old"))
}

/// A sequence of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence(i64);

/// Blocks, sequences, K and V. One thread at a time: it may be sent, but not shared.
pub struct Cache {
    api: &'static Api,
    handle: Handle,
    config: Config,
}

unsafe impl Send for Cache {}

impl Drop for Cache {
    fn drop(&mut self) {
        unsafe { (self.api.close)(self.handle) }
    }
}

impl Cache {
    pub fn open(config: &Config) -> Result<Cache> {
        let mut cache = Cache { api: api()?, handle: null_mut(), config: config.clone() };
        let status = unsafe { (cache.api.open)(config, &mut cache.handle) };
        cache.require(status)?;
        Ok(cache)
    }

    fn require(&self, status: c_int) -> Result<()> {
        let why = || unsafe { CStr::from_ptr((self.api.error)()) }.to_string_lossy();
        if status == 0 { Ok(()) } else { Err(error(status, &why())) }
    }

    pub fn start(&mut self) -> Result<Sequence> {
        let mut sequence = Sequence(0);
        self.require(unsafe { (self.api.start)(self.handle, 1, &mut sequence.0) })?;
        Ok(sequence)
    }

    /// A sequence that shares the blocks of another.
    pub fn fork(&mut self, sequence: Sequence) -> Result<Sequence> {
        let mut child = Sequence(0);
        self.require(unsafe { (self.api.fork)(self.handle, sequence.0, -1, &mut child.0) })?;
        Ok(child)
    }

    pub fn truncate(&mut self, sequence: Sequence, length: i32) -> Result<()> {
        self.require(unsafe { (self.api.truncate)(self.handle, 1, &sequence.0, &length) })
    }

    pub fn release(&mut self, sequence: Sequence) -> Result<()> {
        self.require(unsafe { (self.api.release)(self.handle, 1, &sequence.0) })
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        unsafe { (self.api.stats)(self.handle, &mut stats) };
        stats
    }

    /// Opens a step: room for so many new tokens of each sequence, all or nothing.
    pub fn extend(&mut self, sequences: &[Sequence], counts: &[i32]) -> Result<Step<'_>> {
        if sequences.len() != counts.len() {
            return Err(error(1, "give one count per sequence"));
        }
        let ids: Vec<i64> = sequences.iter().map(|sequence| sequence.0).collect();
        let n = counts.len() as i32;
        self.require(unsafe { (self.api.extend)(self.handle, n, ids.as_ptr(), counts.as_ptr()) })?;
        Ok(Step { of: self, is_open: true })
    }
}

/// The open step of a cache, which nothing else can be done to meanwhile; abandoned, unless it is committed.
pub struct Step<'a> {
    of: &'a mut Cache,
    is_open: bool,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.is_open {
            unsafe { (self.of.api.abandon)(self.of.handle) };
        }
    }
}

impl Step<'_> {
    pub fn num_tokens(&self) -> usize {
        unsafe { (*(self.of.api.step)(self.of.handle)).num_tokens as usize }
    }

    /// Writes k and v of the new tokens, then attends: out [num_tokens, q_heads, v_head_dim].
    pub fn attend(&mut self, layer: i32, q_heads: i32, q: &[f32], k: &[f32], v: &[f32]) -> Result<Vec<f32>> {
        let config = &self.of.config;
        let v_dim = if config.v_head_dim == 0 { config.head_dim } else { config.v_head_dim };
        let numbers = |heads: i32, dim: i32| self.num_tokens() * heads.max(0) as usize * dim as usize;
        let wanted = [numbers(q_heads, config.head_dim), numbers(config.kv_heads, config.head_dim),
                      numbers(config.kv_heads, v_dim)];
        if [q.len(), k.len(), v.len()] != wanted {
            return Err(error(1, &format!("q, k and v must have {wanted:?} numbers")));
        }
        let mut out = vec![0f32; numbers(q_heads, v_dim)];
        let tensors = Tensors {
            q: q.as_ptr(), k: k.as_ptr(), v: v.as_ptr(), out: out.as_mut_ptr(), lse: null_mut(),
            q_heads, q_dtype: FLOAT32, kv_dtype: FLOAT32, out_dtype: FLOAT32, window: 0, sink_tokens: 0,
        };
        let status = unsafe { (self.of.api.attend_step)(self.of.handle, layer, &tensors, null()) };
        self.of.require(status)?;
        Ok(out)
    }

    pub fn commit(mut self) -> Result<()> {
        self.is_open = false;
        self.of.require(unsafe { (self.of.api.commit)(self.of.handle) })
    }
}
