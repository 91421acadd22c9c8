// The comparator of the shape regression must fail wrong results: elements by themselves, memory around them,
// and whole cases run with an operation that has one fault.
#include "runner/comparator.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "runner/case_file.h"
#include "runner/run_case.h"

namespace kvrope::regress {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr NumberFormat kAllFormats[] = {NumberFormat::fp16, NumberFormat::bf16, NumberFormat::fp32,
                                        NumberFormat::fp8_e4m3, NumberFormat::fp8_e5m2};

bool accepts(NumberFormat format, const Want& want, double got) {
  return is_acceptable(format, want, encode(format, got));
}

// --- Single elements

TEST(Comparator, ExactWantTakesOneBitPattern) {
  for (NumberFormat format : kAllFormats) {
    EXPECT_TRUE(accepts(format, {1.5}, 1.5)) << name_of(format);
    uint32_t right = encode(format, 1.5);
    EXPECT_FALSE(is_acceptable(format, {1.5}, right + 1)) << name_of(format);
    EXPECT_FALSE(is_acceptable(format, {1.5}, right - 1)) << name_of(format);
    EXPECT_FALSE(accepts(format, {0.0}, -0.0)) << name_of(format);
    EXPECT_TRUE(accepts(format, {-0.0}, -0.0)) << name_of(format);
  }
}

TEST(Comparator, NanMatchesNothingButNan) {
  for (NumberFormat format : kAllFormats) {
    EXPECT_FALSE(accepts(format, {1.0, 0.5, 1}, kNan)) << name_of(format);
    EXPECT_FALSE(accepts(format, {1.0}, kNan)) << name_of(format);
    EXPECT_FALSE(accepts(format, {kInf, kInf, 1}, kNan)) << name_of(format);
    EXPECT_FALSE(accepts(format, {kNan, kNan, 1}, 1.0)) << name_of(format);
    EXPECT_TRUE(accepts(format, {kNan}, kNan)) << name_of(format);
  }
}

TEST(Comparator, TenPercentOffFails) {
  for (NumberFormat format : {NumberFormat::fp16, NumberFormat::bf16, NumberFormat::fp32}) {
    for (double value : {1.0, -3.7, 1e-3, 1e4}) {
      EXPECT_TRUE(accepts(format, {value, 2e-6 * std::fabs(value), 1}, value)) << name_of(format);
      EXPECT_FALSE(accepts(format, {value, 2e-6 * std::fabs(value), 1}, 1.1 * value)) << name_of(format);
    }
  }
}

TEST(Comparator, InfinityAgainstTheLargestFiniteValue) {
  EXPECT_FALSE(accepts(NumberFormat::fp16, {kInf, 0, 1}, 65504));
  EXPECT_FALSE(accepts(NumberFormat::fp16, {448, 0.1, 1}, kInf));
  EXPECT_FALSE(accepts(NumberFormat::fp16, {-65530, 0.1, 1}, kInf));
  EXPECT_TRUE(accepts(NumberFormat::fp16, {65530, 0.1, 1}, kInf));    // rounds to infinity
  EXPECT_TRUE(accepts(NumberFormat::fp8_e4m3, {kInf}, 448));          // saturates
  EXPECT_FALSE(is_acceptable(NumberFormat::fp8_e5m2, {kInf}, 0x7c));  // the format's own infinity
  EXPECT_FALSE(is_acceptable(NumberFormat::fp8_e5m2, {1e6}, 0x7c));
}

TEST(Comparator, UlpsCountFromTheExactValue) {
  double spacing = 0x1p-7;  // of bf16 from 1 to 2
  EXPECT_TRUE(accepts(NumberFormat::bf16, {1.5 + 0.4 * spacing, 0, 0.5}, 1.5));
  EXPECT_FALSE(accepts(NumberFormat::bf16, {1.5 + 0.6 * spacing, 0, 0.5}, 1.5));
  EXPECT_TRUE(accepts(NumberFormat::bf16, {1.5 + 0.6 * spacing, 0, 1}, 1.5));
  EXPECT_FALSE(accepts(NumberFormat::bf16, {1.5 - 1.1 * spacing, 0, 1}, 1.5));
}

TEST(Comparator, Fp8TakesTheOtherCodeOfANearTieOnly) {
  NumberFormat format = NumberFormat::fp8_e4m3;
  double tie = 34;  // between 32 (0x60, even) and 36 (0x61)
  EXPECT_TRUE(is_acceptable(format, {tie}, 0x60));
  EXPECT_FALSE(is_acceptable(format, {tie}, 0x61));
  EXPECT_TRUE(is_acceptable(format, {tie + 1e-5, 2e-5}, 0x60));
  EXPECT_TRUE(is_acceptable(format, {tie + 1e-5, 2e-5}, 0x61));
  EXPECT_FALSE(is_acceptable(format, {tie + 1e-3, 2e-5}, 0x60));
  EXPECT_FALSE(is_acceptable(format, {34.5, 100}, 0x63)) << "two codes apart, whatever the slack";
  EXPECT_FALSE(is_acceptable(format, {0.0}, 0x80));
  EXPECT_TRUE(is_acceptable(format, {1e-9, 2e-9}, 0x80)) << "a rotation may leave either zero";
}

TEST(Comparator, FormatsRoundToNearestEven) {
  EXPECT_EQ(encode(NumberFormat::fp8_e4m3, 464), 0x7eu);
  EXPECT_EQ(encode(NumberFormat::fp8_e4m3, -500), 0xfeu);
  EXPECT_EQ(encode(NumberFormat::fp8_e4m3, 0x1p-9), 0x01u);
  EXPECT_EQ(encode(NumberFormat::fp8_e4m3, 0x1p-10), 0x00u);
  EXPECT_EQ(encode(NumberFormat::fp8_e5m2, 1e9), 0x7bu);
  EXPECT_EQ(encode(NumberFormat::fp16, 65519.9), 0x7bffu);
  EXPECT_EQ(encode(NumberFormat::fp16, 65520), 0x7c00u);
  EXPECT_EQ(encode(NumberFormat::bf16, 1 + 0x1p-8), 0x3f80u);
  EXPECT_EQ(encode(NumberFormat::bf16, 1 + 0x3p-8), 0x3f82u);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    for (NumberFormat format : {NumberFormat::fp16, NumberFormat::bf16}) {
      double value = decode(format, bits);
      EXPECT_TRUE(std::isnan(value) || encode(format, value) == bits) << name_of(format) << ' ' << bits;
    }
  }
}

// --- Memory

using Before = BufferComparison::Before;

std::vector<uint8_t> canaries(size_t count) {
  return std::vector<uint8_t>(count, kCanary);
}

TEST(Comparator, StrayByteFails) {
  for (size_t stray : {size_t{0}, size_t{7}, size_t{15}}) {
    std::vector<uint8_t> after = canaries(16);
    after[3] = encode(NumberFormat::fp8_e4m3, 2.0);
    after[stray] ^= 1;
    BufferComparison memory("cache", canaries(16), after, Before::poisoned);
    Findings findings;
    memory.element(
        3, NumberFormat::fp8_e4m3, {2.0}, "cache", [] { return ""; }, 0, findings);
    memory.unchanged_elsewhere(findings);
    ASSERT_EQ(findings.mismatches, 1) << stray;
    EXPECT_EQ(findings.kept[0].where, "[byte " + std::to_string(stray) + " of 16]");
  }
}

TEST(Comparator, RightElementAndCleanMemoryPass) {
  std::vector<uint8_t> after = canaries(16);
  store_bits(NumberFormat::bf16, encode(NumberFormat::bf16, -3), after.data() + 4);
  BufferComparison memory("q_out", canaries(16), after, Before::poisoned);
  Findings findings;
  memory.element(
      4, NumberFormat::bf16, {-3}, "q_out", [] { return ""; }, std::nullopt, findings);
  memory.unchanged_elsewhere(findings);
  EXPECT_EQ(findings.mismatches, 0);
  EXPECT_EQ(findings.elements, 1);
}

TEST(Comparator, OutputsThatHeldTheRightValuesBeforeProveNothing) {
  std::vector<uint8_t> right = canaries(16);
  store_bits(NumberFormat::fp32, encode(NumberFormat::fp32, 0.25), right.data());
  BufferComparison memory("q_out", right, right, Before::poisoned);
  Findings findings;
  memory.element(
      0, NumberFormat::fp32, {0.25}, "q_out", [] { return ""; }, std::nullopt, findings);
  memory.unchanged_elsewhere(findings);
  EXPECT_EQ(findings.mismatches, 1);
}

TEST(Comparator, EveryMismatchIsCountedAndTheFirstAreKept) {
  BufferComparison memory("v", canaries(400), canaries(400), Before::poisoned);
  Findings findings;
  for (int64_t i = 0; i < 100; ++i) {
    memory.element(
        4 * i, NumberFormat::fp32, {1.0}, "v", [&] { return std::to_string(i); }, std::nullopt, findings);
  }
  EXPECT_EQ(findings.mismatches, 100);
  ASSERT_EQ(findings.kept.size(), Findings::kMostKept);
  EXPECT_EQ(findings.kept[1].where, "1");
}

// --- Whole cases with a faulty operation

CaseSpec one_case(const std::string& keys) {
  std::string text = R"({"schema_version": 1, "cases": [{"id": "case", )" + keys + "}]}";
  return parse_case_file(text, "test.json").front();
}

// A bit of everything that a fault could leave out.
CaseSpec busy_case() {
  return one_case(R"("num_tokens": 6, "num_kv_rows": 8, "num_slots": 8, "v_head_dim": 48, "rotary_dim": 32,
    "rotary_dim_offset": 8, "page_padding": 5, "kv_cache_dtype": "fp8_e4m3", "scales": {"k": [0.5, 0.3], "v": 2},
    "positions": {"pattern": "random", "offsets": {"pattern": "random"}}, "outputs": {"zeros_out": true},
    "slots": {"pattern": "random", "padding": [1, 6], "swa": {"evicted": 0.2}}, "tolerance": {"ulps": 0.5})");
}

CaseResult run(const CaseSpec& spec, const Operation& operation) {
  return run_case(spec, c10::kCPU, operation);
}

uint8_t* first_byte_of_buffer(const at::Tensor& tensor) {
  return static_cast<uint8_t*>(tensor.storage().mutable_data());
}

// The largest element of the tensor, as a tensor of its own.
at::Tensor largest_element(at::Tensor tensor) {
  auto index = tensor.to(at::kDouble).abs().flatten().argmax().item<int64_t>();
  for (int64_t left = tensor.numel(); tensor.dim() > 0;) {
    left /= tensor.size(0);
    tensor = tensor.select(0, index / left);
    index %= left;
  }
  return tensor;
}

struct FaultyOperation {
  const char* name;
  Operation operation;
};

Operation with_arguments(const std::function<void(FusedArguments&)>& spoil) {
  return [spoil](FusedArguments args) {
    spoil(args);
    return fused_qk_rope_reshape_and_cache(args);
  };
}

Operation with_results(const std::function<void(const FusedArguments&, FusedOutputs&)>& spoil) {
  return [spoil](const FusedArguments& args) {
    FusedOutputs outputs = fused_qk_rope_reshape_and_cache(args);
    spoil(args, outputs);
    return outputs;
  };
}

FusedOutputs do_nothing(const FusedArguments& args) {
  at::Tensor q_out = args.q_out->view({args.q.size(0), -1});
  return {q_out, *args.k_out, args.key_cache, args.value_cache, args.zeros_out};
}

const FaultyOperation kFaults[] = {
    {"does nothing", do_nothing},
    {"NaN in q_out", with_results([](auto& args, auto&) { args.q_out->select(0, 2)[1][3].fill_(kNan); })},
    {"NaN in k_out", with_results([](auto& args, auto&) { args.k_out->select(0, 7)[1][3].fill_(kNan); })},
    {"q_out off by 10 %", with_results([](auto& args, auto&) { largest_element(*args.q_out).mul_(1.1); })},
    {"k_out off by 10 %", with_results([](auto& args, auto&) { largest_element(*args.k_out).mul_(0.9); })},
    {"zeros_out not zero",
     with_results([](auto& args, auto&) { args.zeros_out->select(0, 5)[7][63].fill_(-0.0); })},
    {"byte of k cache",
     with_results([](auto& args, auto&) { args.key_cache.view(at::kByte)[1][2][1][5] += 1; })},
    {"guard band before",
     with_results([](auto& args, auto&) { first_byte_of_buffer(args.value_cache)[9] = 0; })},
    {"guard band after", with_results([](auto& args, auto&) {
       first_byte_of_buffer(args.key_cache)[args.key_cache.storage().nbytes() - 1] = 0;
     })},
    {"page padding", with_results([](auto& args, auto&) {
       int64_t end_of_page = args.key_cache.storage_offset() + args.key_cache[0].numel();
       first_byte_of_buffer(args.key_cache)[end_of_page] = 0;
     })},
    {"input changed", with_results([](auto& args, auto&) { args.v[3][1][40] = 9; })},
    {"slots changed", with_results([](auto& args, auto&) { args.slot_mapping[7] = 3; })},
    {"slots shifted", with_arguments([](auto& args) { args.slot_mapping = args.slot_mapping.roll(1); })},
    {"scales swapped", with_arguments([](auto& args) { std::swap(args.k_scale, args.v_scale); })},
    {"one scale for all heads", with_arguments([](auto& args) { args.k_scale = (*args.k_scale)[0]; })},
    {"scales ignored", with_arguments([](auto& args) { args.apply_scale = false; })},
    {"window table ignored", with_arguments([](auto& args) {
       int64_t capacity = args.key_cache.size(0) * args.key_cache.size(1);
       args.slot_mapping = args.slot_mapping.remainder(capacity);
       args.swa_slot_mapping.reset();
     })},
    {"last slots left out",
     with_arguments([](auto& args) { args.slot_mapping = args.slot_mapping.slice(0, 0, 3); })},
    {"other pairs", with_arguments([](auto& args) { args.is_neox = !args.is_neox; })},
    {"offsets ignored", with_arguments([](auto& args) { args.offs.reset(); })},
    {"sine off by one", with_arguments([](auto& args) {
       at::Tensor table = args.cos_sin.clone();
       table.slice(1, 16) = args.cos_sin.slice(1, 16).roll(1, 1);
       args.cos_sin = table;
     })},
    {"rotated dims shifted", with_arguments([](auto& args) { args.rotary_dim_offset -= 2; })},
    {"KV-only rows rotated", with_results([](auto& args, auto&) {
       args.k_out->select(0, 7).copy_(args.k_out->select(0, 7).flip(1));
     })},
    {"k_out is another tensor",
     with_results([](auto&, auto& outputs) { outputs.k_out = outputs.k_out.clone(); })},
    {"q_out keeps its heads", with_results([](auto& args, auto& outputs) { outputs.q_out = *args.q_out; })},
    {"k_out of another dtype",
     with_results([](auto&, auto& outputs) { outputs.k_out = outputs.k_out.view(at::kHalf); })},
    {"a value in the wrong slot", with_results([](auto& args, auto&) {
       at::Tensor slots = args.swa_slot_mapping->index({args.slot_mapping.slice(0, 2, 4)});
       int64_t block_size = args.value_cache.size(1);
       auto at_slot = [&](int64_t i) {
         auto slot = slots[i].template item<int64_t>();
         return args.value_cache[slot / block_size][slot % block_size];
       };
       ASSERT_GE(slots.min().template item<int64_t>(), 0);
       at::Tensor first = at_slot(0).view(at::kByte).clone();
       at_slot(0).view(at::kByte).copy_(at_slot(1).view(at::kByte));
       at_slot(1).view(at::kByte).copy_(first);
     })},
    {"fp8 two codes off", with_results([](auto& args, auto&) {
       at::Tensor codes = args.key_cache.view(at::kByte);
       auto slot = args.swa_slot_mapping->index({args.slot_mapping[2]}).template item<int64_t>();
       ASSERT_GE(slot, 0);
       codes[slot / codes.size(1)][slot % codes.size(1)][1][3].bitwise_xor_(2);
     })},
    {"stray byte of q_out's buffer",
     with_results([](auto& args, auto&) { first_byte_of_buffer(*args.q_out)[100] ^= 1; })},
    {"k_out of another shape",
     with_results([](auto&, auto& outputs) { outputs.k_out = outputs.k_out.slice(0, 0, 7); })},
    {"q_out of another dtype",
     with_results([](auto&, auto& outputs) { outputs.q_out = outputs.q_out.view(at::kHalf); })},
    {"right values in another cache",
     with_results([](auto&, auto& outputs) { outputs.key_cache = outputs.key_cache.clone(); })},
    {"does nothing and returns the right values",
     [](const FusedArguments& args) {
       FusedArguments elsewhere = args;
       elsewhere.q_out = args.q_out->clone();
       elsewhere.k_out = args.k_out->clone();
       elsewhere.zeros_out = args.zeros_out->clone();
       elsewhere.key_cache = args.key_cache.clone();
       elsewhere.value_cache = args.value_cache.clone();
       return fused_qk_rope_reshape_and_cache(elsewhere);
     }},
    {"zeros_out not returned", with_results([](auto&, auto& outputs) { outputs.zeros_out.reset(); })},
};

TEST(FaultyOperations, TheRightOnePasses) {
  CaseResult result = run(busy_case(), fused_qk_rope_reshape_and_cache);
  EXPECT_EQ(result.disposition, Disposition::passed) << result.message;
  EXPECT_GT(result.findings.elements, 0);
}

TEST(FaultyOperations, EachFails) {
  for (const FaultyOperation& fault : kFaults) {
    CaseResult result = run(busy_case(), fault.operation);
    EXPECT_EQ(result.disposition, Disposition::failed) << fault.name << ": " << result.message;
    EXPECT_GT(result.findings.mismatches, 0) << fault.name;
  }
}

TEST(FaultyOperations, RowsMixedInASharedSlotFail) {
  CaseSpec spec = one_case(R"("num_tokens": 2, "slots": {"values": [3, 3]})");
  EXPECT_EQ(run(spec, fused_qk_rope_reshape_and_cache).disposition, Disposition::passed);
  auto mix = with_results([](auto& args, auto&) { args.value_cache[0][3][0].copy_(args.v[0][0]); });
  EXPECT_EQ(run(spec, mix).disposition, Disposition::failed);
  auto first = with_results([](auto& args, auto&) {
    args.key_cache[0][3].copy_(args.k_out->select(0, 0));
    args.value_cache[0][3].copy_(args.v[0]);
  });
  EXPECT_EQ(run(spec, first).disposition, Disposition::passed) << "either whole row is right";
}

// The fused call takes the key before it is rounded, and the reciprocal of the scale.
TEST(FaultyOperations, AnotherRoundingThanTheUnfusedOneFails) {
  const auto forget = [](const FusedArguments& args) {
    FusedArguments forgetful = args;
    forgetful.match_unfused = false;
    return fused_qk_rope_reshape_and_cache(forgetful);
  };
  const std::string unfused = R"("num_tokens": 40, "match_unfused": true, )";
  for (const char* keys : {R"("kv_cache_dtype": "fp8_e4m3")", R"("dtype": "fp32", "scales": {"v": 0.7})",
                           R"("kv_cache_dtype": "fp8_e4m3", "outputs": {"k_out": false})"}) {
    const CaseSpec spec = one_case(unfused + keys);
    EXPECT_EQ(run(spec, fused_qk_rope_reshape_and_cache).disposition, Disposition::passed) << keys;
    EXPECT_EQ(run(spec, forget).disposition, Disposition::failed) << keys;
  }
}

TEST(FaultyOperations, OutputsInPlaceAreCompared) {
  CaseSpec spec = one_case(R"("inputs": {"in_place": true, "strides": "fused_qkv"})");
  EXPECT_EQ(run(spec, fused_qk_rope_reshape_and_cache).disposition, Disposition::passed);
  EXPECT_EQ(run(spec, do_nothing).disposition, Disposition::failed);
  auto neighbour = with_results([](auto& args, auto&) { args.v[0][0][0] = 77; });
  EXPECT_EQ(run(spec, neighbour).disposition, Disposition::failed);
}

// --- Errors

FusedOutputs raise(const FusedArguments&) {
  TORCH_CHECK_VALUE(false, "slot_mapping[2] is 64");
}

TEST(Dispositions, AnErrorIsRightWhereItIsExpected) {
  CaseSpec plain = one_case(R"("seed": 1)");
  CaseSpec rejected = one_case(R"("expect": {"error": "slot_mapping\\[2\\] is \\d+"})");
  EXPECT_EQ(run(plain, raise).disposition, Disposition::error);
  EXPECT_EQ(run(plain, raise).message, "slot_mapping[2] is 64");
  EXPECT_EQ(run(rejected, raise).disposition, Disposition::rejected_as_expected);
  EXPECT_EQ(run(rejected, fused_qk_rope_reshape_and_cache).disposition, Disposition::failed);
  CaseSpec other = one_case(R"("expect": {"error": "k: expected shape"})");
  EXPECT_EQ(run(other, raise).disposition, Disposition::failed);
}

// Python callers see others as RuntimeError.
TEST(Dispositions, AnErrorThatIsNoRefusalFails) {
  CaseSpec rejected = one_case(R"("expect": {"error": "slot_mapping"})");
  auto assertion = [](const FusedArguments&) -> FusedOutputs { TORCH_CHECK(false, "slot_mapping is odd"); };
  CaseResult result = run(rejected, assertion);
  EXPECT_EQ(result.disposition, Disposition::failed);
  EXPECT_NE(result.message.find("expected a ValueError, TypeError or IndexError, got: "), std::string::npos);
}

TEST(Dispositions, AnErrorAfterAWriteFails) {
  CaseSpec rejected = one_case(R"("expect": {"error": "slot_mapping"})");
  auto late = [](const FusedArguments& args) {
    args.key_cache[0][0][0][0].fill_(1);
    return raise(args);
  };
  EXPECT_EQ(run(rejected, late).disposition, Disposition::failed);
}

TEST(Dispositions, ACallThatShouldHaveRaisedIsNoSuccess) {
  CaseSpec odd_table = one_case(R"("table": {"width": 65})");
  EXPECT_EQ(run(odd_table, do_nothing).disposition, Disposition::error);
}

}  // namespace
}  // namespace kvrope::regress
