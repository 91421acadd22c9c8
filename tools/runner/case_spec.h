// One case of a case file: what the call is made of. The members are the keys of the file; what a case leaves
// out has the value given here, or is worked out where it is used (empty optionals).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runner/misuse.h"
#include "runner/number_format.h"

namespace kvrope::regress {

enum class IndexDType { int32, int64 };
enum class CacheDType { same, fp8_e4m3, fp8_e5m2, fp8_e4m3_in_uint8, fp8_e5m2_in_uint8 };
enum class Layout { flash_nhd, flash_hnd, packed_kv, x_split, x_split_shuffle };

// How the angles depend on the position, after Hugging Face's `rope_scaling`.
struct RopeScaling {
  enum class Type { none, linear, dynamic, llama3, yarn, longrope, proportional };
  Type type = Type::none;
  std::optional<double> factor;  // 1; longrope: max_position_embeddings / original_max_position_embeddings
  double low_freq_factor = 1, high_freq_factor = 4;        // llama3
  double beta_fast = 32, beta_slow = 1;                    // yarn
  std::optional<double> attention_factor;                  // yarn, longrope
  double mscale = 0, mscale_all_dim = 0;                   // yarn: the attention factor when neither is 0
  std::optional<double> original_max_position_embeddings;  // dynamic, llama3, yarn, longrope
  std::optional<double> max_position_embeddings;           // longrope
  bool truncate = true;                                    // yarn
  std::vector<double> short_factor, long_factor;           // longrope: one for each pair
  double partial_rotary_factor = 1;                        // proportional
};

struct TableSpec {
  enum class Width { half, full };
  std::variant<Width, int64_t> width =
      Width::half;              // a number of columns may be one that the operation refuses
  std::optional<int64_t> rows;  // P; by default all positions of the case fit
  double base = 10000;
  RopeScaling scaling;
};

struct Request {
  int64_t start = 0;  // position of its first token in this call
  int64_t length = 1;
};

struct OffsetsSpec {
  enum class Pattern { constant, random, explicit_values };
  std::optional<Pattern> pattern;
  std::optional<int64_t> value;  // constant: 0
  std::optional<int64_t> limit;  // random: drawn from 0 .. limit - 1; 16
  std::optional<std::vector<int64_t>> values;
  IndexDType dtype = IndexDType::int64;

  Pattern chosen() const {
    if (pattern) return *pattern;
    if (limit) return Pattern::random;
    return values ? Pattern::explicit_values : Pattern::constant;
  }
};

struct PositionsSpec {
  enum class Pattern { contiguous, requests, random, explicit_values };
  std::optional<Pattern> pattern;  // by default what the other keys say, else contiguous
  std::optional<int64_t> start;    // contiguous: 0
  std::optional<std::vector<Request>> requests;
  std::optional<std::vector<std::vector<int64_t>>> values;  // of each axis
  std::optional<int64_t> axes;  // 1: pos is (T,); more: (axes, T). By default 3 with an mRoPE section, else 1
  IndexDType dtype = IndexDType::int64;
  std::optional<OffsetsSpec> offsets;

  Pattern chosen() const {
    if (pattern) return *pattern;
    if (requests) return Pattern::requests;
    return values ? Pattern::explicit_values : Pattern::contiguous;
  }
};

struct WindowSpec {
  std::optional<int64_t>
      window;  // tokens of a request that are this many or more behind its newest are evicted
  std::optional<double> evicted;               // fraction of the rows that are evicted besides
  std::optional<std::vector<int64_t>> values;  // the table itself
  IndexDType dtype = IndexDType::int32;
};

struct SlotsSpec {
  enum class Pattern { sequential, blocks, random, explicit_values };
  std::optional<Pattern> pattern;
  std::optional<int64_t> start;  // sequential: 0
  std::optional<std::vector<int64_t>> values;
  std::variant<double, std::vector<int64_t>> padding = 0.0;  // fraction of the rows, or the rows
  IndexDType dtype = IndexDType::int64;
  std::optional<WindowSpec> swa;

  Pattern chosen() const {
    if (pattern) return *pattern;
    return values ? Pattern::explicit_values : Pattern::sequential;
  }
};

// A number is a tensor of shape (), a list one of its length.
using Scale = std::variant<double, std::vector<double>>;

struct NormSpec {
  bool q = true, k = true;
  double eps = 1e-6;
  bool plus_one = false;
  bool has_fp32_weights = false;  // else of the case's dtype
};

struct MropeSpec {
  std::optional<std::vector<int64_t>> section;  // frequencies of each axis of positions
  bool interleaved = false;

  // The axis that gives the angles of a frequency, that of pair 0 .. R/2 - 1; 0 without a section of three.
  int64_t axis_of(int64_t frequency) const;
};

// Where one tensor lies in its buffer, in elements; contiguous where no strides are given.
struct TensorStrides {
  std::optional<std::vector<int64_t>> strides;
  int64_t offset = 0;
};

struct InputsSpec {
  enum class Strides { contiguous, fused_qkv, odd_offset, transposed };
  enum class Values { normal, ramp, extremes, nan_padding };
  Strides strides = Strides::contiguous;
  std::map<std::string, TensorStrides> tensors;  // by name, outputs and caches too; the rest are contiguous
  bool in_place = false;                         // q_out is q, unless it is fp8; k_out is k
  Values values = Values::normal;
};

struct OutputsSpec {
  enum class Zeros { none, given, allocated };
  bool q_out = true, k_out = true;  // given; else the operation allocates them
  Zeros zeros_out = Zeros::none;
};

struct Tolerance {
  double ulps = 1;         // of a 16-bit result
  double relative = 2e-6;  // of the sum of the magnitudes that a rotation adds
};

// The model that a case's sizes are those of. Informative: the call is made of the other keys.
struct ModelSpec {
  std::string name;
  int64_t tensor_parallel = 1;  // shards that the heads are split over
};

struct CaseSpec {
  std::string id;
  std::optional<ModelSpec> model;
  int64_t q_heads = 8, kv_heads = 2, head_dim = 64;
  std::optional<int64_t> num_tokens, num_kv_rows, num_slots;
  std::optional<int64_t> v_head_dim, rotary_dim;
  int64_t rotary_dim_offset = 0;
  NumberFormat dtype = NumberFormat::bf16, table_dtype = NumberFormat::fp32;
  CacheDType kv_cache_dtype = CacheDType::same;
  std::optional<NumberFormat> q_out_dtype;
  Layout layout = Layout::flash_nhd;
  std::optional<int64_t> x;  // 16 bytes' worth
  int64_t block_size = 16;
  std::optional<int64_t> num_blocks;
  int64_t page_padding = 0;  // elements between the end of a block and the start of the next
  bool is_neox = true;
  TableSpec table;
  PositionsSpec positions;
  SlotsSpec slots;
  std::optional<Scale> k_scale, v_scale, q_scale;
  bool apply_scale = true;
  std::optional<NormSpec> norm;
  std::optional<MropeSpec> mrope;
  bool match_unfused = false;
  InputsSpec inputs;
  OutputsSpec outputs;
  std::optional<Misuse> misuse;
  std::optional<std::string> expected_error;  // regular expression
  Tolerance tolerance;
  std::vector<std::string> tags;
  int64_t seed = 0;

  // Worked out from the file's keys.
  std::string name;  // id and the swept values
  std::string file;
  std::string pointer;  // of the case in the file

  int64_t tokens() const;        // T
  int64_t kv_rows() const;       // Tk
  int64_t slots_length() const;  // T_slot
  int64_t value_dim() const { return v_head_dim.value_or(head_dim); }
  int64_t rotated_dims() const { return rotary_dim.value_or(head_dim); }
  int64_t table_width() const;
  NumberFormat cache_format() const;
  bool cache_is_uint8() const {
    return kv_cache_dtype == CacheDType::fp8_e4m3_in_uint8 || kv_cache_dtype == CacheDType::fp8_e5m2_in_uint8;
  }
  NumberFormat q_out_format() const { return q_out_dtype.value_or(dtype); }
  bool q_is_in_place() const { return inputs.in_place && !q_out_dtype; }
  bool has_section() const { return mrope && mrope->section; }
  int64_t position_axes() const;
  int64_t split() const { return x.value_or(16 / bytes_of(cache_format())); }
  bool norms_q() const { return norm && norm->q; }
  bool norms_k() const { return norm && norm->k; }
  NumberFormat weight_format() const { return norm && norm->has_fp32_weights ? NumberFormat::fp32 : dtype; }
  bool is_flash() const { return layout != Layout::x_split && layout != Layout::x_split_shuffle; }
};

}  // namespace kvrope::regress
