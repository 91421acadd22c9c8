// The operation and its two halves for C++ callers: calls with named arguments. Link kvrope::cache_ops; needs
// LibTorch, no Python.
//
//   kvrope::FusedArguments args;
//   args.q = q;  args.k = k;  args.v = v;  ...
//   auto [q_out, k_out, key_cache, value_cache, zeros_out] = kvrope::fused_qk_rope_reshape_and_cache(args);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrope {

// T rows of q, Tk >= T rows of k and v (rows T.. are KV-only: final already, not rotated), T_slot <= Tk
// slots, QH query heads (a multiple of KH), KH key and value heads, head sizes D (even) and Dv up to 512, R =
// rotary_dim, NB blocks of BS slots, P table rows. Any strides; all tensors on one device (CPU or CUDA).

// What the rotation needs besides q and k. For each pair a' = a cos - b sin, b' = b cos + a sin (RoFormer,
// arXiv:2104.09864), in fp32, rounded once.
struct RotationArguments {
  at::Tensor pos;                          // (T,) int32 or int64; (3, T) with mrope_section
  at::Tensor cos_sin;                      // (P, R) or (P, 2R) fp32, fp16 or bf16: cosines, then sines
  bool is_neox = true;                     // pairs (i, i + R/2); false is GPT-J: (2i, 2i + 1)
  std::optional<at::Tensor> offs;          // (T,) int32 or int64, added to pos in 64 bits
  std::optional<int64_t> rotary_dim;       // R, even, 2..D; D when absent
  int64_t rotary_dim_offset = 0;           // the rotated dims are offset .. offset + R
  std::optional<at::Tensor> q_out, k_out;  // as q, k; allocated when absent; q and k themselves are allowed

  // (), (1,) or (KH,) fp32, for a q_out that is float8_e4m3fn or float8_e5m2: cast(x * (1 / q_scale)), query
  // head h with the scale of its KV head. 1 when absent; apply_scale does not touch it.
  std::optional<at::Tensor> q_scale;

  // Multimodal RoPE: frequency i of the R/2 turns by the position on one of three axes (time, height, width).
  // Three sizes with sum R/2: one section after the other, or interleaved: i % 3 while that axis lasts, then
  // 0. offs is added on each axis. With pos (T,) all axes are equal.
  std::optional<std::vector<int64_t>> mrope_section;
  bool mrope_interleaved = false;

  // (D,) of q's dtype or fp32: the heads of q, of k or of both are normed before their rotation, all dims of
  // the rows below T: x / sqrt(mean(x^2) + eps) * weight, in fp32 without a rounding before the rotation.
  std::optional<at::Tensor> q_weight, k_weight;
  double eps = 1e-6;
  bool weight_plus_one = false;  // multiplies by 1 + weight (Gemma)
};

// What the cache write needs besides k.
struct CacheArguments {
  at::Tensor v;          // (Tk, KH, Dv), dtype of k
  at::Tensor key_cache;  // flash (NB, BS, KH, D); x-split (NB, KH, D/x, BS, x), x a power of two
  // flash (NB, BS, KH, Dv); x-split (NB, KH, Dv, BS) or shuffled (NB, KH, BS/x, Dv, x)
  at::Tensor value_cache;
  at::Tensor slot_mapping;  // (T_slot,) int32 or int64: slot = block * BS + offset; negative = padding
  // (), (1,) or (KH,) fp32. Stored: cast(x * (1 / scale)) by the fused call, cast(x / scale) by a write
  // alone.
  std::optional<at::Tensor> k_scale, v_scale;
  bool flash_layout = true;
  bool apply_scale = true;                     // false: the scales are ignored
  std::optional<at::Tensor> swa_slot_mapping;  // (N,) int32 or int64: slot = swa[slot]; negative = evicted
  std::string kv_cache_dtype = "auto";         // for uint8 caches: "fp8" = "fp8_e4m3", "fp8_e5m2"
};

struct FusedArguments : RotationArguments, CacheArguments {
  at::Tensor q;                         // (T, QH, D) fp16, bf16 or fp32; T may be 0
  at::Tensor k;                         // (Tk, KH, D), dtype of q
  bool output_zeros = false;            // allocate zeros_out when it is absent
  std::optional<at::Tensor> zeros_out;  // as q; filled with zeros
  // k is rounded to its dtype before the cache, and stored = cast(x / scale): every bit is that of rope
  // followed by reshape_and_cache.
  bool match_unfused = false;
};

struct FusedOutputs {
  at::Tensor q_out;  // (T, QH * D), a view of the given or allocated (T, QH, D)
  at::Tensor k_out;  // (Tk, KH, D)
  at::Tensor key_cache, value_cache;
  std::optional<at::Tensor> zeros_out;  // (T, QH, D) when it was given or asked for
};

// Rotates q and k by RoPE and writes rotated k and unchanged v into the paged caches, on CUDA in one launch
// on the current stream of the tensors' device. Throws c10::ValueError, c10::TypeError (a dtype) or
// c10::IndexError (CPU: a slot or position out of range) that names the argument, what it got and what fits,
// before anything is written. On CUDA an out-of-range slot or position is recorded instead (fault.h).
FusedOutputs fused_qk_rope_reshape_and_cache(const FusedArguments& arguments);

// For engines that cannot fuse: the rotation alone.
struct RopeArguments : RotationArguments {
  at::Tensor q;                 // (T, QH, D)
  std::optional<at::Tensor> k;  // (Tk, KH, D); rows T.. are copied to k_out as they are
};

struct RopeOutputs {
  at::Tensor q_out;                 // (T, QH, D)
  std::optional<at::Tensor> k_out;  // (Tk, KH, D), with k
};

// One launch; errors and faults as above. No row is padding here: every position must be in the table.
RopeOutputs rope(const RopeArguments& arguments);

// The cache write alone: k is final. Scales divide, as in vLLM's function of this name.
struct ReshapeAndCacheArguments : CacheArguments {
  at::Tensor k;  // (Tk, KH, D) fp16, bf16 or fp32; Tk may be 0
};

// One launch; errors and faults as above.
void reshape_and_cache(const ReshapeAndCacheArguments& arguments);

}  // namespace kvrope
