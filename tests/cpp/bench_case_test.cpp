// Measuring on the CPU: copies of a call's buffers, rounds, what a measured case says.
#include "runner/bench_case.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "runner/bench_document.h"
#include "runner/buffer_sets.h"
#include "runner/call_buffers.h"
#include "runner/case_file.h"

namespace kvrope::regress {
namespace {

CaseSpec only_case(const std::string& keys) {
  return parse_case_file(R"({"schema_version": 1, "cases": [{"id": "a", )" + keys + "}]}", "test.json").at(0);
}

FusedArguments arguments_of(const CaseSpec& spec) {
  return CallBuffers(spec, make_call_data(spec), c10::kCPU).arguments();
}

TEST(BufferSets, CopiesAreTheSameCallInOtherMemory) {
  for (const char* keys : {R"("inputs": {"strides": "fused_qkv"}, "layout": "packed_kv")",
                           R"("inputs": {"strides": "odd_offset", "in_place": true}, "layout": "x_split")",
                           R"("inputs": {"strides": "transposed"}, "scales": {"k": 2, "v": [1, 3]})"}) {
    FusedArguments first = arguments_of(only_case(keys));
    FusedArguments copy = copy_of(first, c10::kCPU);
    fused_qk_rope_reshape_and_cache(first);
    EXPECT_FALSE(at::equal(bytes_of_memory(first.key_cache), bytes_of_memory(copy.key_cache))) << keys;
    fused_qk_rope_reshape_and_cache(copy);
    std::vector<at::Tensor> copies;
    for_each_tensor(copy, [&](at::Tensor& tensor) { copies.push_back(tensor); });
    size_t next = 0;
    for_each_tensor(first, [&](at::Tensor& tensor) {
      const at::Tensor& other = copies[next++];
      EXPECT_EQ(tensor.strides(), other.strides());
      EXPECT_EQ(tensor.storage_offset(), other.storage_offset());
      EXPECT_FALSE(tensor.is_alias_of(other));
      EXPECT_TRUE(at::equal(bytes_of_memory(tensor), bytes_of_memory(other))) << keys;
    });
  }
}

TEST(BufferSets, ViewsOfOneBufferAreCopiedOnce) {
  FusedArguments first =
      arguments_of(only_case(R"("inputs": {"strides": "fused_qkv"}, "layout": "packed_kv")"));
  FusedArguments copy = copy_of(first, c10::kCPU, first.cos_sin);
  EXPECT_TRUE(copy.q.is_alias_of(copy.v));
  EXPECT_TRUE(copy.key_cache.is_alias_of(copy.value_cache));
  EXPECT_TRUE(copy.cos_sin.is_alias_of(first.cos_sin));
  EXPECT_EQ(held_bytes(copy), held_bytes(first));
}

class CountedCalls : public TimedCalls {
 public:
  explicit CountedCalls(double value) : value_(value) {}
  double microseconds() override { return value_ + calls_++; }

 private:
  double value_;
  int calls_ = 0;
};

TEST(BenchRounds, EveryCandidateOnceARoundAfterThreeUncounted) {
  std::vector<Candidate> candidates;
  candidates.push_back({"a", 1, std::make_unique<CountedCalls>(100)});
  candidates.push_back({"b", 2, std::make_unique<CountedCalls>(200)});
  std::vector<CandidateTimes> times = time_in_rounds(candidates, 4);
  EXPECT_EQ(times[0].microseconds, (std::vector<double>{103, 104, 105, 106}));
  EXPECT_EQ(times[1].microseconds, (std::vector<double>{203, 204, 205, 206}));
  EXPECT_EQ(times[1].name, "b");
}

TEST(BenchCase, MeasuresInEveryState) {
  for (L2State l2 : {L2State::warm, L2State::rotating}) {
    BenchCase bench(only_case(R"("num_tokens": 1)"), c10::kCPU);
    BenchCheck check = bench.check();
    EXPECT_EQ(check.result.disposition, Disposition::passed);
    EXPECT_EQ(check.against, "oracle");
    BenchSettings settings;
    settings.rounds = 10;
    BenchResult result = bench.measure(l2, settings);
    ASSERT_EQ(result.times.size(), 2u);
    EXPECT_EQ(result.times[0].name, "kvrope");
    EXPECT_EQ(result.times[1].name, "memcpy");
    EXPECT_EQ(result.times[0].microseconds.size(), 10u);
    EXPECT_GT(result.times[0].microseconds[0], 0);
    EXPECT_GT(result.host_microseconds.value_or(0), 0);
    EXPECT_EQ(result.group.sets, l2 == L2State::warm ? 1 : 512);
  }
}

TEST(BenchCase, RefusedCasesAreSkippedAndWrongOnesFail) {
  BenchCase refused(only_case(R"("q_heads": 3, "expect": {"error": "heads"})"), c10::kCPU);
  EXPECT_EQ(refused.check().result.disposition, Disposition::skipped);
  EXPECT_EQ(refused.check().result.message, "expects an error");
  BenchCase wrong(only_case(R"("tolerance": {"ulps": 0, "relative": 0})"), c10::kCPU);
  EXPECT_EQ(wrong.check().result.disposition, Disposition::failed);
  BenchCase huge(only_case(R"("num_tokens": 2000000000)"), c10::kCPU);
  EXPECT_EQ(huge.check().result.disposition, Disposition::skipped);
  EXPECT_EQ(huge.check().result.message, "needs more memory than a benchmark is given");
}

TEST(BenchDocument, TimesGoThereAndBack) {
  BenchResult result;
  result.times = {{"kvrope", 3000, {3, 1, 2}}, {"copy", 2000, {1, 1, 1}}, {"memcpy", 4000, {4, 4, 4}}};
  Json json = describe(only_case(R"("num_tokens": 7)"), {{}, "oracle"}, result);
  EXPECT_EQ(json["num_tokens"], 7);
  EXPECT_EQ(json["l2"], "warm");
  EXPECT_EQ(json["times"]["kvrope"]["gb_per_second"], 1.5);
  EXPECT_EQ(json["ratios"], Json::parse(R"({"copy": 2.0, "memcpy": 0.5})"));
  EXPECT_TRUE(json["host_microseconds"].is_null());
  MeasuredTimes measured = measured_times(json, "kvrope");
  EXPECT_EQ(measured.microseconds, (std::vector<double>{3, 1, 2}));
  EXPECT_EQ(measured.floor, 1);
  EXPECT_EQ(our_candidates(json), std::vector<std::string>{"kvrope"});
}

}  // namespace
}  // namespace kvrope::regress
