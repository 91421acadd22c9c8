// The CPU kernel is compiled for several processors and runs on any thread: whatever the bits of its
// arguments, each gives the same.
#include <gtest/gtest.h>

#include <cfenv>

#include "arguments.h"
#include "cpu_kernel.h"
#include "make_params.h"
#include "small_call.h"

namespace kvrope {
namespace {

struct Call {
  at::ScalarType dtype, cache_dtype;
  int64_t head_size, rotary_dim, rotary_dim_offset;
  bool is_neox, is_normed, has_fp8_queries;
  bool is_unusual = false;  // strided heads, split caches, match_unfused, all scales
};

at::Tensor random_bits(std::vector<int64_t> shape, at::ScalarType dtype) {
  shape.back() *= static_cast<int64_t>(c10::elementSize(dtype));
  return at::randint(0, 256, shape, at::kByte).view(dtype);
}

void make_unusual(FusedArguments& args) {
  const int64_t size = args.q.size(2), x = 8, blocks = args.key_cache.size(0), slots = args.key_cache.size(1);
  const int64_t heads = args.k.size(1);
  args.q = at::cat({args.q, args.q}, 2).slice(2, 0, c10::nullopt, 2);
  args.key_cache = args.key_cache.view({blocks, heads, size / x, slots, x});
  args.value_cache = args.value_cache.view({blocks, heads, size, slots});
  args.flash_layout = false;
  args.match_unfused = true;
  args.k_scale = at::rand({heads}) + 0.5;
  args.v_scale = at::rand({}) + 0.5;
}

FusedArguments make_call(const Call& call) {
  constexpr int64_t kRows = 96, kQueries = 4, kKeys = 2, kBlocks = 8, kSlots = 16;
  const int64_t size = call.head_size;
  FusedArguments args;
  args.q = random_bits({kRows, kQueries, size}, call.dtype);
  args.k = random_bits({kRows, kKeys, size}, call.dtype);
  args.v = random_bits({kRows, kKeys, size}, call.dtype);
  args.key_cache = random_bits({kBlocks, kSlots, kKeys, size}, call.cache_dtype);
  args.value_cache = random_bits({kBlocks, kSlots, kKeys, size}, call.cache_dtype);
  args.flash_layout = true;
  args.slot_mapping = at::randperm(kBlocks * kSlots, at::kLong).narrow(0, 0, kRows);
  args.pos = at::randint(64, {kRows}, at::kLong);
  args.cos_sin = at::randn({64, call.rotary_dim});
  args.rotary_dim = call.rotary_dim;
  args.rotary_dim_offset = call.rotary_dim_offset;
  args.is_neox = call.is_neox;
  if (call.cache_dtype != call.dtype) args.k_scale = at::rand({kKeys}) + 0.5;
  if (call.is_normed) args.q_weight = args.k_weight = at::randn({size}, call.dtype);
  if (call.is_unusual) make_unusual(args);
  args.q_out = at::empty_like(args.q);
  args.k_out = at::empty_like(args.k);
  if (call.has_fp8_queries) args.q_out = args.q_out->to(at::kFloat8_e5m2);
  return args;
}

FusedArguments served_by(const CpuTarget& target, const FusedArguments& args) {
  FusedArguments own = args;
  own.key_cache = args.key_cache.clone();
  own.value_cache = args.value_cache.clone();
  own.q_out = args.q_out->clone();
  own.k_out = args.k_out->clone();
  run_on_cpu("test", make_params(own), target);
  return own;
}

void expect_same_bits(const FusedArguments& a, const FusedArguments& b) {
  EXPECT_TRUE(is_same_bits(*a.q_out, *b.q_out)) << "q_out";
  EXPECT_TRUE(is_same_bits(*a.k_out, *b.k_out)) << "k_out";
  EXPECT_TRUE(is_same_bits(a.key_cache, b.key_cache)) << "key_cache";
  EXPECT_TRUE(is_same_bits(a.value_cache, b.value_cache)) << "value_cache";
}

void expect_same_of_all_targets(const Call& call) {
  const FusedArguments args = make_call(call), first = served_by(cpu_targets().front(), args);
  for (const CpuTarget& target : cpu_targets()) {
    SCOPED_TRACE(target.name);
    expect_same_bits(first, served_by(target, args));
  }
}

TEST(CpuTargets, GiveTheSameBits) {
  if (cpu_targets().size() < 2) GTEST_SKIP() << "this processor can run one target alone";
  at::manual_seed(11);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    for (const at::ScalarType cache_dtype : {dtype, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      for (const bool is_neox : {true, false}) {
        SCOPED_TRACE(testing::Message() << dtype << ", cache " << cache_dtype << ", NeoX " << is_neox);
        expect_same_of_all_targets({dtype, cache_dtype, 128, 128, 0, is_neox, false, false});
        expect_same_of_all_targets({dtype, cache_dtype, 70, 46, 5, is_neox, false, true});
        expect_same_of_all_targets({dtype, cache_dtype, 128, 64, 64, is_neox, true, false});
        expect_same_of_all_targets({dtype, cache_dtype, 74, 74, 0, is_neox, true, true});
        expect_same_of_all_targets({dtype, cache_dtype, 128, 128, 0, is_neox, false, false, true});
      }
    }
  }
}

// As after torch.set_flush_denormal(True), which tells one thread alone, and with another rounding.
TEST(CpuKernel, DoesNotDependOnTheFloatingPointEnvironmentOfItsCaller) {
  at::manual_seed(12);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    SCOPED_TRACE(dtype);
    const FusedArguments args = make_call({dtype, at::kFloat8_e4m3fn, 128, 64, 0, true, true, true});
    const FusedArguments expected = served_by(cpu_targets().front(), args);
    at::globalContext().setFlushDenormal(true);
    std::fesetround(FE_UPWARD);
    const FusedArguments other = served_by(cpu_targets().front(), args);
    EXPECT_EQ(std::fegetround(), FE_UPWARD) << "the caller's is not given back";
    std::fesetround(FE_TONEAREST);
    at::globalContext().setFlushDenormal(false);
    expect_same_bits(expected, other);
  }
}

}  // namespace
}  // namespace kvrope
