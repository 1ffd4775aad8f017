//! docs/examples/c/decode.c in Rust.
//!
//!     rustc decode.rs $(python -m pagedcache.capi --rustc) && ./decode
mod pagedcache;

use pagedcache::{Cache, Config, Sequence, FLOAT16};

const LAYERS: i32 = 2;
const KV_HEADS: i32 = 2;
const Q_HEADS: i32 = 4;
const HEAD_DIM: i32 = 16;

/// Where a model would compute q, k or v (kind 0 to 2) of tokens, they are made up.
fn numbers(kind: i32, layer: i32, tokens: &[i32], heads: i32) -> Vec<f32> {
    let one = |token: i32, i: i32| ((kind * 31 + layer * 17 + token * 13 + i * 7) % 64 - 32) as f32 / 32.0;
    tokens.iter().flat_map(|&token| (0..heads * HEAD_DIM).map(move |i| one(token, i))).collect()
}

fn run_step(cache: &mut Cache, sequences: &[Sequence], counts: &[i32], tokens: &[i32]) -> pagedcache::Result<()> {
    let mut out = Vec::new();
    let mut step = cache.extend(sequences, counts)?;
    for layer in 0..LAYERS {
        let q = numbers(0, layer, tokens, Q_HEADS);
        let (k, v) = (numbers(1, layer, tokens, KV_HEADS), numbers(2, layer, tokens, KV_HEADS));
        out = step.attend(layer, Q_HEADS, &q, &k, &v)?;
    }
    step.commit()?;
    for (token, row) in tokens.iter().zip(out.chunks((Q_HEADS * HEAD_DIM) as usize)) {
        println!("{} {:?} {:?}", token, row[0], row[row.len() - 1]);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut cache = Cache::open(&Config {
        num_layers: LAYERS,
        num_blocks: 100,
        block_size: 4,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        dtype: FLOAT16,
        ..Default::default()
    })?;
    let parent = cache.start()?;
    run_step(&mut cache, &[parent], &[6], &[1, 2, 3, 4, 5, 6])?;
    for token in 7..=9 {
        run_step(&mut cache, &[parent], &[1], &[token])?;
    }
    let child = cache.fork(parent)?;
    run_step(&mut cache, &[parent, child], &[1, 1], &[10, 20])?;
    let stats = cache.stats();
    println!("blocks {}, shared {}", stats.used_blocks, stats.shared_blocks);

    let twice = cache.release(parent).and_then(|()| cache.release(parent)); // a stale handle is an error, never UB
    println!("status {}", twice.unwrap_err().status);
    Ok(())
}
