// The kernel on the host against the CPU kernel, to the bit: the shapes of launches, both index widths, every
// vector width, lanes along tokens. Faults are recorded.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <sstream>

#include "arguments.h"
#include "cpu_kernel.h"
#include "kernel_on_host.h"
#include "launch_plan.h"
#include "make_params.h"
#include "small_call.h"

namespace kvrope {
namespace {

struct Shape {
  int64_t num_tokens, kv_only, q_heads, kv_heads, head_size, v_head_size, rotary_dim, offset, block_size;
  at::ScalarType dtype;
  bool is_fp8;
  CacheKind kind;
  bool is_neox, is_full_width;
  CallForm form;  // plain too where there are extensions besides
  bool has_offs, has_window, has_zeros_out, lacks_k_out, has_16_bit_table;
  bool has_runs;  // slots follow each other
  bool in_place;
  bool match_unfused;
  int64_t x;
  bool norms_q, norms_k, has_fp32_weights, has_strided_weights, weight_plus_one;
  bool has_axes, is_interleaved;  // mRoPE
  bool has_fp8_queries, is_e5m2, scales_queries;
};

std::optional<at::Tensor> make_weight(const Shape& s, bool is_given) {
  if (!is_given) return std::nullopt;
  const int64_t stride = s.has_strided_weights ? 3 : 1;
  return at::randn({s.head_size * stride})
      .to(s.has_fp32_weights ? at::kFloat : s.dtype)
      .slice(0, 0, c10::nullopt, stride);
}

// A position on each axis, of any tokens one after the other, and sections that no vector is made for.
void add_axes(const Shape& s, FusedArguments& args) {
  const at::Tensor others = at::randint(8, 32, {s.num_tokens, 2}, at::kInt);
  args.pos = at::cat({args.pos.unsqueeze(1), others}, 1).t();
  const int64_t frequencies = s.rotary_dim / 2, time = (frequencies + 2) / 3,
                height = (frequencies - time) / 2;
  args.mrope_section = std::vector<int64_t>{time, height, frequencies - time - height};
  args.mrope_interleaved = s.is_interleaved;
}

// Slots in random order or in runs that break off, padding, a window table, offsets, two rows with one slot;
// strided q.
FusedArguments make_call(const Shape& s) {
  const int64_t rows = s.num_tokens + s.kv_only, num_blocks = rows * 2 / s.block_size + 5;
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape).to(s.dtype); };
  FusedArguments args;
  args.q = random({s.num_tokens, s.q_heads + 1, s.head_size}).narrow(1, 0, s.q_heads);
  args.k = random({rows, s.kv_heads, s.head_size});
  args.v = random({rows, s.kv_heads, s.v_head_size});
  const at::ScalarType cache_type = s.is_fp8 ? at::kFloat8_e4m3fn : s.dtype;
  const auto cache = [&](at::IntArrayRef shape) {
    return at::zeros(shape, at::TensorOptions().dtype(cache_type));
  };
  const int64_t x = s.x, nb = num_blocks, bs = s.block_size;
  args.flash_layout = s.kind == CacheKind::flash;
  args.key_cache = args.flash_layout ? cache({nb, bs, s.kv_heads, s.head_size})
                                     : cache({nb, s.kv_heads, s.head_size / x, bs, x});
  args.value_cache = args.flash_layout               ? cache({nb, bs, s.kv_heads, s.v_head_size})
                     : s.kind == CacheKind::shuffled ? cache({nb, s.kv_heads, bs / x, s.v_head_size, x})
                                                     : cache({nb, s.kv_heads, s.v_head_size, bs});
  const int64_t num_slots = s.form == CallForm::general ? rows - 1 : rows;
  if (s.has_runs) {
    args.slot_mapping = at::arange(num_slots, at::kLong) + (s.num_tokens % 3) * 8;
    args.slot_mapping.slice(0, num_slots / 2).add_(1);
  } else {
    args.slot_mapping = at::randperm(nb * bs, at::kLong).narrow(0, 0, num_slots).clone();
    args.slot_mapping.slice(0, 0, num_slots, 7).fill_(-3);
  }
  if (rows > 4 && rows <= 256) {
    args.slot_mapping[1] = args.slot_mapping[2].item<int64_t>();
    args.slot_mapping[3] = args.slot_mapping[num_slots / 2] =
        args.slot_mapping[num_slots - 1].item<int64_t>();
    if (s.has_runs) args.slot_mapping[0] = args.slot_mapping[num_slots - 1].item<int64_t>();
    // A tile that shares no other slot.
    if (rows > 40) args.slot_mapping[17] = args.slot_mapping[num_slots - 2].item<int64_t>();
  }
  args.pos = at::randint(8, 32, {s.num_tokens}, at::kInt);
  if (s.form == CallForm::plain && !s.has_runs) args.pos[0] = 70;  // beyond the table, in a padding row
  if (s.has_offs) args.offs = at::randint(-8, 32, {s.num_tokens}, at::kLong);
  if (s.has_window) {
    args.swa_slot_mapping = s.has_runs ? at::arange(nb * bs, at::kInt) : at::randperm(nb * bs, at::kInt);
    args.swa_slot_mapping->slice(0, 0, 5).fill_(-1);
  }
  if (s.has_axes) add_axes(s, args);
  args.cos_sin = at::randn({64, s.is_full_width ? 2 * s.rotary_dim : s.rotary_dim});
  if (s.has_16_bit_table) args.cos_sin = args.cos_sin.to(at::kBFloat16);
  if (s.is_fp8 || s.form == CallForm::general) args.k_scale = at::rand({s.kv_heads}) + 0.5;
  if (s.has_fp8_queries && s.scales_queries) args.q_scale = at::rand({s.kv_heads}) + 0.5;
  if (s.is_fp8) args.v_scale = at::rand({}) + 0.5;
  args.is_neox = s.is_neox;
  args.rotary_dim = s.rotary_dim;
  args.rotary_dim_offset = s.offset;
  args.match_unfused = s.match_unfused;
  args.q_weight = make_weight(s, s.norms_q);
  args.k_weight = make_weight(s, s.norms_k);
  args.eps = 1e-5;
  args.weight_plus_one = s.weight_plus_one && (s.norms_q || s.norms_k);
  return args;
}

at::Tensor make_q_out(const Shape& s, const FusedArguments& args) {
  const at::Tensor q_out = at::full(args.q.sizes(), -1.0, args.q.options());
  if (!s.has_fp8_queries) return q_out;
  return q_out.to(s.is_e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn);
}

FusedArguments with_own_outputs(const FusedArguments& args, const Shape& s) {
  FusedArguments own = args;
  own.key_cache = args.key_cache.clone();
  own.value_cache = args.value_cache.clone();
  own.q_out = make_q_out(s, args);
  if (s.in_place) {
    if (!s.has_fp8_queries) own.q_out = own.q = args.q.clone();
    own.k = args.k.clone();
  }
  if (!s.lacks_k_out) own.k_out = s.in_place ? own.k : at::full(args.k.sizes(), -1.0, args.k.options());
  if (s.has_zeros_out) own.zeros_out = at::full(args.q.sizes(), -1.0, args.q.options());
  return own;
}

FaultRecord run_with_record(const FusedArguments& args, Operation operation = Operation::fused) {
  FaultRecord record{};
  RopeCacheParams params = make_params(args, operation);
  params.fault_record = &record;
  run_on_host(params);
  return record;
}

// How many calls each of the kernels served that are compiled for some calls alone.
struct Served {
  int plain = 0, usual = 0, extended = 0, extended_partial = 0, normed_by_warps = 0, tiles_that_look = 0;

  void count(const LaunchPlan& plan, bool is_normed) {
    plain += plan.form == CallForm::plain;
    usual += plan.form == CallForm::usual;
    extended += plan.form == CallForm::extended;
    extended_partial += plan.form == CallForm::extended_partial;
    normed_by_warps += is_normed && plan.threads_per_row > kWarp;
    tiles_that_look += plan.values_are_tiled && plan.keeps_last_of_slot;
  }
};

void expect_same_as_cpu_kernel(const Shape& shape, Served& served) {
  const FusedArguments args = make_call(shape);
  const FusedArguments cpu = with_own_outputs(args, shape), host = with_own_outputs(args, shape);
  served.count(plan_launch(make_params(host)), shape.norms_q || shape.norms_k);
  run_on_cpu("test", make_params(cpu));
  EXPECT_EQ(run_with_record(host).is_claimed, 0) << "padding is no fault";
  EXPECT_TRUE(is_same_bits(*cpu.q_out, *host.q_out)) << "q_out";
  EXPECT_TRUE(!cpu.k_out || is_same_bits(*cpu.k_out, *host.k_out)) << "k_out";
  EXPECT_TRUE(!cpu.zeros_out || is_same_bits(*cpu.zeros_out, *host.zeros_out)) << "zeros_out";
  EXPECT_TRUE(is_same_bits(cpu.key_cache, host.key_cache)) << "key_cache";
  EXPECT_TRUE(is_same_bits(cpu.value_cache, host.value_cache)) << "value_cache";
}

using Random = std::mt19937;

int64_t one_of(Random& random, const std::vector<int64_t>& values) {
  return values[random() % values.size()];
}

Shape random_shape(Random& random, std::vector<int64_t> token_counts) {
  const auto one_of = [&](const std::vector<int64_t>& values) { return kvrope::one_of(random, values); };
  Shape s{};
  // General, plain, or fewer usual: those have a test of their own besides.
  s.form = static_cast<CallForm>(one_of({0, 0, 1, 2, 2}));
  const bool is_plain = s.form == CallForm::plain, is_general = s.form == CallForm::general;
  const auto has_option = [&] { return is_general || (!is_plain && one_of({0, 1}) != 0); };
  s.has_offs = has_option();
  s.has_window = has_option();
  s.has_zeros_out = has_option();
  s.lacks_k_out = !is_general && has_option();
  s.has_16_bit_table = !is_plain && one_of({0, 1}) != 0;
  s.has_runs = one_of({0, 1}) != 0;
  s.num_tokens = one_of(token_counts);
  s.kv_only = is_general ? one_of({0, 1, 3}) : 0;
  if (s.kv_only == 3) s.num_tokens = one_of({s.num_tokens, 0});
  s.kv_heads = one_of({1, 2, 3});
  s.q_heads = s.kv_heads * one_of({1, 4, 7});
  s.head_size = one_of({16, 20, 48, 64, 46, 128, 256});
  s.in_place = one_of({0, 1}) != 0;
  s.v_head_size = is_plain ? s.head_size : one_of({s.head_size, 24, 33});
  s.rotary_dim = is_plain ? s.head_size : one_of({s.head_size, s.head_size / 2 / 2 * 2, 2});
  s.offset = one_of({0, s.head_size - s.rotary_dim, (s.head_size - s.rotary_dim) / 2});
  s.block_size = one_of({16, 32, 48});
  do {
    s.x = one_of({2, 4, 8, 16});
  } while (s.head_size % s.x != 0);
  s.dtype = one_of({0, 1}) != 0 ? at::kBFloat16 : at::kFloat;
  s.is_fp8 = one_of({0, 1}) != 0;
  s.kind = static_cast<CacheKind>(one_of({0, 1, 2}));
  s.is_neox = one_of({0, 1}) != 0;
  s.is_full_width = is_general && one_of({0, 1}) != 0;
  s.match_unfused = is_general && one_of({0, 0, 1}) != 0;
  if (one_of({0, 1}) == 0) return s;
  if (one_of({0, 1, 1}) != 0) s.is_neox = true, s.dtype = at::kBFloat16;  // extended calls
  s.norms_q = one_of({0, 1}) != 0;
  s.norms_k = one_of({0, 1}) != 0;
  s.has_fp32_weights = one_of({0, 1}) != 0;
  s.has_strided_weights = one_of({0, 0, 0, 1}) != 0;
  s.weight_plus_one = one_of({0, 1}) != 0;
  s.has_axes = one_of({0, 1}) != 0;
  s.is_interleaved = one_of({0, 1}) != 0;
  s.has_fp8_queries = one_of({0, 1}) != 0;
  s.is_e5m2 = one_of({0, 1}) != 0;
  s.scales_queries = one_of({0, 1}) != 0;
  return s;
}

std::string name_of(const Shape& s) {
  return (std::ostringstream() << "T " << s.num_tokens << " + " << s.kv_only << ", heads " << s.q_heads << '/'
                               << s.kv_heads << ", D " << s.head_size << ", Dv " << s.v_head_size << ", R "
                               << s.rotary_dim << " at " << s.offset << ", layout "
                               << static_cast<int>(s.kind) << ", fp8 " << s.is_fp8 << ", neox " << s.is_neox
                               << ", form " << static_cast<int>(s.form) << ", offs " << s.has_offs
                               << ", window " << s.has_window << ", zeros_out " << s.has_zeros_out
                               << ", no k_out " << s.lacks_k_out << ", 16-bit table " << s.has_16_bit_table
                               << ", runs " << s.has_runs << ", unfused " << s.match_unfused << ", norm "
                               << s.norms_q << s.norms_k << ", weights fp32 " << s.has_fp32_weights
                               << " strided " << s.has_strided_weights << " plus one " << s.weight_plus_one
                               << ", axes " << s.has_axes << " interleaved " << s.is_interleaved
                               << ", fp8 queries " << s.has_fp8_queries << " e5m2 " << s.is_e5m2 << " scaled "
                               << s.scales_queries)
      .str();
}

// Up to the first shape that differs.
Served expect_same_for(unsigned seed, int num_cases,
                       const std::function<Shape(Random& random, int i)>& make_shape) {
  at::manual_seed(seed);
  Random random(seed);
  Served served;
  for (int i = 0; i < num_cases && !testing::Test::HasFailure(); ++i) {
    const Shape s = make_shape(random, i);
    SCOPED_TRACE(testing::Message() << "case " << i << ": " << name_of(s));
    expect_same_as_cpu_kernel(s, served);
  }
  return served;
}

// A thread has two heads of queries, and they have scales of their own.
Shape scaled_heads(CallForm form) {
  Shape s{};
  s.num_tokens = 257;
  s.q_heads = 32;
  s.kv_heads = 16;
  s.head_size = s.v_head_size = s.rotary_dim = 256;
  s.block_size = 16;
  s.dtype = at::kBFloat16;
  s.kind = CacheKind::flash;
  s.is_neox = s.has_fp8_queries = s.scales_queries = true;
  s.form = form;
  return s;
}

TEST(KernelOnHost, GivesTheBitsOfTheCpuKernel) {
  Served served = expect_same_for(5, 300, [](Random& random, int i) {
    return random_shape(random, {1, 2, 9, 40, 129, 256, 257, 300, i % 20 == 0 ? 2049 : 5});
  });
  for (const CallForm form : {CallForm::plain, CallForm::general}) {
    expect_same_as_cpu_kernel(scaled_heads(form), served);
  }
  EXPECT_GT(served.plain, 40);
  EXPECT_GT(served.extended, 15);
  EXPECT_GT(served.normed_by_warps, 5);
}

// With usual options, and vectors of 16 bytes fit.
Shape usual_shape(Random& random, int) {
  const auto one_of = [&](const std::vector<int64_t>& values) { return kvrope::one_of(random, values); };
  Shape s{};
  s.form = CallForm::usual;
  s.num_tokens = one_of({1, 2, 9, 40, 129, 256, 257, 300});
  s.kv_heads = one_of({1, 2, 3});
  s.q_heads = s.kv_heads * one_of({1, 4, 7});
  s.head_size = one_of({64, 72, 96, 128, 256});
  s.v_head_size = one_of({s.head_size, s.head_size, 8, 48, 288});
  s.rotary_dim = one_of({s.head_size / 16 * 16, 32, 16});
  s.offset = one_of({0, 8, s.head_size - s.rotary_dim});
  if (s.offset + s.rotary_dim > s.head_size) s.offset = 0;
  s.block_size = one_of({16, 32});
  s.x = 8;
  s.dtype = at::kBFloat16;
  s.kind = static_cast<CacheKind>(one_of({0, 1, 2}));
  const auto coin = [&] { return one_of({0, 1}) != 0; };
  s.is_fp8 = coin(), s.is_neox = coin(), s.has_runs = coin(), s.in_place = coin();
  s.has_offs = coin(), s.has_window = coin(), s.has_zeros_out = coin(), s.lacks_k_out = coin();
  s.has_16_bit_table = !s.has_offs || coin();  // not plain
  return s;
}

TEST(KernelOnHost, UsualCallsGiveTheBitsOfTheCpuKernel) {
  EXPECT_EQ(expect_same_for(7, 100, usual_shape).usual, 100);
}

// Of newer models, some of which rotate a half or a quarter of each head.
Shape partial_shape(Random& random, int i) {
  const auto one_of = [&](const std::vector<int64_t>& values) { return kvrope::one_of(random, values); };
  const auto coin = [&] { return one_of({0, 1}) != 0; };
  Shape s{};
  s.form = CallForm::plain;
  s.num_tokens = one_of({1, 9, 129, 257, i % 10 == 0 ? 2049 : 5});
  s.kv_heads = one_of({1, 2, 3});
  s.q_heads = s.kv_heads * one_of({1, 4, 8});
  s.head_size = s.v_head_size = one_of({64, 128, 256});
  s.rotary_dim = s.head_size / one_of({2, 4});
  s.block_size = 16;
  s.x = 8;
  s.dtype = at::kBFloat16;
  s.kind = static_cast<CacheKind>(one_of({0, 1, 2}));
  s.is_neox = true;
  s.is_fp8 = coin(), s.has_runs = coin(), s.in_place = coin(), s.norms_q = coin(), s.norms_k = coin();
  s.has_fp32_weights = coin(), s.weight_plus_one = coin(), s.is_interleaved = coin(), s.is_e5m2 = coin();
  s.has_fp8_queries = s.scales_queries = coin();
  s.has_axes = !s.norms_q || coin();
  return s;
}

TEST(KernelOnHost, ExtendedCallsOfPartialHeadsGiveTheBitsOfTheCpuKernel) {
  EXPECT_EQ(expect_same_for(8, 60, partial_shape).extended_partial, 60);
}

// Rows with one slot side by side and as far apart as rows can be, where a warp looks at all later rows, a
// block does, or the threads of a tile do.
TEST(KernelOnHost, FewRowsLeaveASlotToTheLast) {
  at::manual_seed(9);
  Served served;
  for (const int64_t num_tokens : {5, 32, 33, 34, 64, 65, 66, 128, 129, 200, 256}) {
    for (const CacheKind kind : {CacheKind::flash, CacheKind::split, CacheKind::shuffled}) {
      for (int options = 0; options < 8; ++options) {
        Shape s{};
        s.num_tokens = num_tokens;
        s.q_heads = s.kv_heads = 9;
        s.head_size = s.v_head_size = s.rotary_dim = 64;
        s.block_size = 16;
        s.x = 4;
        s.kind = kind;
        s.is_neox = true;
        s.dtype = options & 1 ? at::kFloat : at::kBFloat16;
        s.has_runs = options & 2;
        s.has_window = options & 4;
        s.form = s.has_window ? CallForm::usual : CallForm::plain;
        SCOPED_TRACE(name_of(s));
        expect_same_as_cpu_kernel(s, served);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_EQ(served.tiles_that_look, 48);
}

void expect_same_on_cpu_and_host(const FusedArguments& cpu, const FusedArguments& host, Operation operation) {
  run_on_cpu("test", make_params(cpu, operation));
  EXPECT_EQ(run_with_record(host, operation).is_claimed, 0);
}

// The halves one after the other, on both, beside the fused call.
void expect_halves_are_the_fused_call(const Shape& s) {
  FusedArguments args = make_call(s);
  if (s.form == CallForm::plain) args.pos.fill_(9);     // rotation alone knows no padding
  if (args.q_scale) args.q_scale = at::rand({}) + 0.5;  // nor, of queries alone, KV heads
  args.match_unfused = true;
  const FusedArguments fused = with_own_outputs(args, s);
  EXPECT_EQ(run_with_record(fused).is_claimed, 0);

  FusedArguments cpu = with_own_outputs(args, s), host = with_own_outputs(args, s);
  for (FusedArguments* half : {&cpu, &host}) half->zeros_out.reset();
  FusedArguments cpu_queries = cpu, host_queries = host;
  for (FusedArguments* queries : {&cpu_queries, &host_queries}) {
    queries->k = at::Tensor();
    queries->k_out.reset();
    queries->q_out = make_q_out(s, args);
  }
  expect_same_on_cpu_and_host(cpu_queries, host_queries, Operation::rope);
  expect_same_on_cpu_and_host(cpu, host, Operation::rope);
  for (const FusedArguments* half : {&cpu, &host, &cpu_queries, &host_queries}) {
    EXPECT_TRUE(is_same_bits(*half->q_out, *fused.q_out)) << "q_out";
    EXPECT_TRUE(!half->k_out || is_same_bits(*half->k_out, *fused.k_out)) << "k_out";
  }
  for (FusedArguments* half : {&cpu, &host}) {
    half->k = *half->k_out;
    half->k_out.reset();
  }
  expect_same_on_cpu_and_host(cpu, host, Operation::reshape_and_cache);
  for (const FusedArguments* half : {&cpu, &host}) {
    EXPECT_TRUE(is_same_bits(half->key_cache, fused.key_cache)) << "key_cache";
    EXPECT_TRUE(is_same_bits(half->value_cache, fused.value_cache)) << "value_cache";
  }
}

TEST(KernelOnHost, HalvesGiveTheBitsOfTheFusedCall) {
  at::manual_seed(6);
  Random random(6);
  for (int i = 0; i < 100; ++i) {
    Shape s = random_shape(random, {1, 2, 9, 40, 129, 256, 257, 300});
    s.lacks_k_out = false;
    SCOPED_TRACE(testing::Message() << "case " << i << ": " << name_of(s));
    expect_halves_are_the_fused_call(s);
    if (HasFailure()) return;
  }
}

// More heads than a grid has blocks for: a thread serves several even in calls of few rows.
TEST(KernelOnHost, MoreHeadsThanBlocks) {
  Shape s{};
  s.num_tokens = 1;
  s.kv_heads = s.q_heads = 16001;
  s.head_size = s.v_head_size = s.rotary_dim = 510;  // 255 pairs: single elements, one row at once
  s.block_size = 2;
  s.x = 2;
  s.dtype = at::kBFloat16;
  s.is_fp8 = true;
  s.kind = CacheKind::split;
  s.form = CallForm::plain;
  s.is_neox = s.has_runs = s.norms_k = true;
  Served served;
  expect_same_as_cpu_kernel(s, served);
  EXPECT_EQ(served.normed_by_warps, 1);
}

// Indices that are not read, those of rows past slot_mapping and behind a window table of padding, are below
// no limit, even where slots are more than 32 bits count. Here all blocks are in one place.
TEST(KernelOnHost, RowsWithoutASlotAreNotCachedWhateverTheCacheHolds) {
  for (const bool has_window : {false, true}) {
    for (const at::ScalarType type : {at::kInt, at::kLong}) {
      FusedArguments args = small_call({});
      args.q_out = at::empty_like(args.q), args.k_out = at::empty_like(args.k);
      args.slot_mapping = at::full({3}, -1, type);
      if (has_window) args.swa_slot_mapping = at::arange(96, type);
      const at::Tensor keys = args.key_cache.clone(), values = args.value_cache.clone();
      RopeCacheParams params = make_params(args);
      params.num_slots = int64_t{1} << 40;
      params.key_cache.layout.block_stride = params.value_cache.layout.block_stride = 0;
      FaultRecord record{};
      params.fault_record = &record;
      run_on_host(params);
      EXPECT_EQ(record.is_claimed, 0) << "padding is no fault";
      EXPECT_TRUE(is_same_bits(args.key_cache, keys)) << has_window << type;
      EXPECT_TRUE(is_same_bits(args.value_cache, values)) << has_window << type;
    }
  }
}

TEST(KernelOnHost, RecordsFaults) {
  struct Fault {
    const char* name;
    FaultKind kind;
    int64_t row, value;
    std::function<void(FusedArguments&)> cause;
  };
  const auto window = [](FusedArguments& args, int64_t size) { args.swa_slot_mapping = at::arange(size); };
  const std::vector<Fault> faults = {
      {"slot", FaultKind::slot_out_of_range, 3, 96, [](auto& args) { args.slot_mapping[3] = 96; }},
      {"slot of 64 bits", FaultKind::slot_out_of_range, 0, int64_t{1} << 32,
       [](auto& args) { args.slot_mapping[0] = int64_t{1} << 32; }},
      {"slot past the window table", FaultKind::slot_out_of_range, 2, 95,
       [&](auto& args) { window(args, 95); }},
      {"entry of the window table", FaultKind::window_slot_out_of_range, 4, 96,
       [&](auto& args) { window(args, 96), (*args.swa_slot_mapping)[30] = 96; }},
      {"position", FaultKind::position_out_of_range, 2, kPositions,
       [](auto& args) { args.pos[2] = kPositions; }},
      {"negative position", FaultKind::position_out_of_range, 0, -1, [](auto& args) { args.pos[0] = -1; }},
      {"position with offset", FaultKind::position_out_of_range, 3, int64_t{1} << 31,
       [](auto& args) { args.offs = at::zeros({kTokens}, at::kInt), (*args.offs)[3] = INT32_MAX - 6; }},
      {"none: evicted", FaultKind::none, 0, 0,
       [&](auto& args) { window(args, 96), (*args.swa_slot_mapping)[30] = -5; }},
      {"none: padding behind a window", FaultKind::none, 0, 0, [&](auto& args) { window(args, 96); }},
      {"none: padding without a position", FaultKind::none, 0, 0, [](auto& args) { args.pos[1] = 1000; }},
  };
  for (const Fault& fault : faults) {
    FusedArguments args = small_call({});
    args.q_out = at::empty_like(args.q), args.k_out = at::empty_like(args.k);
    fault.cause(args);
    const FaultRecord record = run_with_record(args);
    EXPECT_EQ(record.kind, fault.kind) << fault.name;
    EXPECT_EQ(record.row, fault.row) << fault.name;
    EXPECT_EQ(record.value, fault.value) << fault.name;
  }
}

// Rotation alone, with and without k: no row is padding, whatever slots there were.
TEST(KernelOnHost, RecordsFaultsOfHalves) {
  for (const bool has_k : {true, false}) {
    FusedArguments args = small_call({});
    args.q_out = at::empty_like(args.q), args.k_out = at::empty_like(args.k);
    if (!has_k) args.k = at::Tensor(), args.k_out.reset();
    EXPECT_EQ(run_with_record(args, Operation::rope).kind, FaultKind::none);
    args.pos[1] = 1000;
    const FaultRecord record = run_with_record(args, Operation::rope);
    EXPECT_EQ(record.kind, FaultKind::position_out_of_range);
    EXPECT_EQ(record.row, 1);
    EXPECT_EQ(record.value, 1000);
    EXPECT_TRUE(args.q_out->select(0, 1).isnan().all().item<bool>());
    EXPECT_TRUE(!has_k || args.k_out->select(0, 1).isnan().all().item<bool>());
    EXPECT_FALSE(args.q_out->select(0, 2).isnan().any().item<bool>());
  }
  FusedArguments args = small_call({});
  args.slot_mapping[5] = 96;
  const FaultRecord record = run_with_record(args, Operation::reshape_and_cache);
  EXPECT_EQ(record.kind, FaultKind::slot_out_of_range);
  EXPECT_EQ(record.row, 5);
  EXPECT_EQ(record.value, 96);
}

}  // namespace
}  // namespace kvrope
