// mRoPE and fp8 queries in the runner: the axes of a case, and that no fault of an operation gets through.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "runner/case_file.h"
#include "runner/row_plan.h"
#include "runner/run_case.h"

namespace kvrope::regress {
namespace {

std::vector<CaseSpec> parse(const std::string& members) {
  return parse_case_file(R"({"schema_version": 1, )" + members + "}", "test.json");
}

CaseSpec one_case(const std::string& keys) {
  return parse(R"("cases": [{"id": "case", )" + keys + "}]").front();
}

CaseResult run(const CaseSpec& spec, const Operation& operation) {
  return run_case(spec, c10::kCPU, operation);
}

TEST(MropeCase, PositionsOfSeveralAxes) {
  auto cases = parse(R"("cases": [
      {"id": "a", "mrope": {"section": [8, 12, 12]}},
      {"id": "b", "mrope": {"section": [8, 12, 12]}, "positions": {"axes": 1}},
      {"id": "c", "positions": {"values": [[1, 2], [3, 4], [5, 6]]}},
      {"id": "d", "mrope": {"section": [8, 12, 12]}, "positions": {"values": [1, 2, 3]}},
      {"id": "e", "mrope": {"interleaved": true}}, {"id": "f", "positions": {"axes": 2}}])");
  const int64_t axes[] = {3, 1, 3, 3, 1, 2}, tokens[] = {5, 5, 2, 3, 5, 5};
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].position_axes(), axes[i]) << cases[i].id;
    EXPECT_EQ(cases[i].tokens(), tokens[i]) << cases[i].id;
    RowPlan plan = plan_rows(cases[i]);
    ASSERT_EQ(plan.pos.size(), static_cast<size_t>(axes[i])) << cases[i].id;
    for (const auto& axis : plan.pos) EXPECT_EQ(axis.size(), static_cast<size_t>(tokens[i]));
  }
  EXPECT_EQ(plan_rows(cases[2]).pos[1], (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(plan_rows(cases[3]).pos[0], (std::vector<int64_t>{1, 2, 3}));
}

// Drawn from the table after the offset, the same for the same seed, and no two axes alike.
TEST(MropeCase, AxesAfterTheFirstAreDrawn) {
  auto spec = parse(R"("cases": [{"id": "a", "num_tokens": 50, "mrope": {"section": [8, 12, 12]}, "seed": 7,
      "table": {"rows": 60}, "positions": {"offsets": {"value": -100}, "start": 105}}])")[0];
  RowPlan plan = plan_rows(spec);
  for (const auto& axis : plan.pos) {
    for (int64_t position : axis) EXPECT_TRUE(position >= 100 && position < 160) << position;
  }
  EXPECT_NE(plan.pos[0], plan.pos[1]);
  EXPECT_NE(plan.pos[0], plan.pos[2]);
  EXPECT_NE(plan.pos[1], plan.pos[2]);
  EXPECT_EQ(plan.pos, plan_rows(spec).pos);
  spec.seed = 8;
  EXPECT_NE(plan.pos[1], plan_rows(spec).pos[1]);
}

std::string axes_of(std::vector<int64_t> section, bool interleaved, int64_t frequencies) {
  MropeSpec mrope{std::move(section), interleaved};
  std::string axes;
  for (int64_t i = 0; i < frequencies; ++i) axes += std::to_string(mrope.axis_of(i));
  return axes;
}

TEST(MropeCase, AxesOfFrequencies) {
  EXPECT_EQ(axes_of({2, 3, 1}, false, 6), "001112");
  EXPECT_EQ(axes_of({0, 2, 2}, false, 4), "1122");
  EXPECT_EQ(axes_of({4, 0, 0}, false, 4), "0000");
  EXPECT_EQ(axes_of({4, 3, 3}, true, 10), "0120120120");
  EXPECT_EQ(axes_of({6, 2, 1}, true, 9), "012010000");
  EXPECT_EQ(axes_of({0, 6, 0}, true, 6), "010010");  // there are no more of that axis
  EXPECT_EQ(axes_of({0, 0, 3}, true, 3), "002");
}

// --- Faulty operations

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

// Both ways that frequencies are given to axes, each of another position, and queries with a scale for each
// KV head.
const char* const kMropeCases[] = {
    R"("q_heads": 6, "kv_heads": 3, "mrope": {"section": [9, 11, 12]}, "q_out_dtype": "fp8_e4m3",
       "scales": {"q": [0.5, 0.3, 3]}, "positions": {"offsets": {"pattern": "random"}}, "num_tokens": 6)",
    R"("q_heads": 6, "kv_heads": 3, "mrope": {"section": [12, 11, 9], "interleaved": true}, "q_out_dtype": "fp8_e5m2",
       "scales": {"q": [0.5, 0.3, 3]}, "positions": {"offsets": {"pattern": "random"}}, "num_tokens": 6)"};

const FaultyOperation kMropeFaults[] = {
    {"time and height swapped", with_arguments([](auto& args) {
       args.pos = args.pos.index_select(0, at::tensor({1, 0, 2}));
     })},
    {"height and width swapped", with_arguments([](auto& args) {
       args.pos = args.pos.index_select(0, at::tensor({0, 2, 1}));
     })},
    {"time for all", with_arguments([](auto& args) { args.pos = args.pos[0].clone(); })},
    {"the other order", with_arguments([](auto& args) { args.mrope_interleaved = !args.mrope_interleaved; })},
    {"one frequency of the neighbour", with_arguments([](auto& args) {
       std::vector<int64_t>& section = *args.mrope_section;
       --section[1], ++section[0];
     })},
    {"no section", with_arguments([](auto& args) {
       args.pos = args.pos[0].clone();
       args.mrope_section.reset();
       args.mrope_interleaved = false;
     })},
    {"offset of time alone", with_arguments([](auto& args) {
       args.pos = args.pos.clone();
       args.pos.slice(0, 1) -= *args.offs;
     })},
    {"q_scale ignored", with_arguments([](auto& args) { args.q_scale.reset(); })},
    {"one q_scale for all heads", with_arguments([](auto& args) { args.q_scale = (*args.q_scale)[0]; })},
    {"q_scales in another order", with_arguments([](auto& args) { args.q_scale = args.q_scale->roll(1); })},
    {"q_scale of the query head", with_results([](auto& args, auto&) {  // as if it were h % KH
       FusedArguments other = args;
       other.q_out = at::empty_like(*args.q_out);
       other.q_scale = args.q_scale->roll(1);
       fused_qk_rope_reshape_and_cache(other);
       args.q_out->select(1, 1).copy_(other.q_out->select(1, 1));
     })},
    {"a code of q_out",
     with_results([](auto& args, auto&) { args.q_out->view(at::kByte).select(0, 3)[1][5].bitwise_xor_(2); })},
    {"byte behind q_out", with_results([](auto& args, auto&) {
       int64_t end = args.q_out->storage_offset() + args.q_out->numel();
       static_cast<uint8_t*>(args.q_out->storage().mutable_data())[end] = 0;
     })},
    {"q_out as k is",
     with_results([](auto&, auto& outputs) { outputs.q_out = outputs.q_out.view(at::kByte); })}};

TEST(MropeCase, FaultyOperationsFail) {
  for (const char* keys : kMropeCases) {
    CaseSpec spec = one_case(keys);
    CaseResult right = run(spec, fused_qk_rope_reshape_and_cache);
    EXPECT_EQ(right.disposition, Disposition::passed) << right.message;
    for (const FaultyOperation& fault : kMropeFaults) {
      CaseResult result = run(spec, fault.operation);
      EXPECT_EQ(result.disposition, Disposition::failed)
          << keys << ' ' << fault.name << ": " << result.message;
      EXPECT_GT(result.findings.mismatches, 0) << fault.name;
    }
  }
}

TEST(MropeCase, CallsThatShouldHaveRaisedAreNoSuccess) {
  for (const char* keys :
       {R"("mrope": {"section": [8, 12, 11]})", R"("mrope": {"section": [16, 16]})",
        R"("positions": {"axes": 3})", R"("mrope": {"section": [8, 12, 12]}, "positions": {"axes": 2})",
        R"("mrope": {"interleaved": true})", R"("scales": {"q": 1})",
        R"("q_out_dtype": "fp8_e4m3", "scales": {"q": [1, 1, 1]})"}) {
    auto accept = [](const FusedArguments& args) -> FusedOutputs {
      at::Tensor q_out = args.q_out->view({args.q.size(0), -1});
      return {q_out, *args.k_out, args.key_cache, args.value_cache, args.zeros_out};
    };
    CaseResult result = run(one_case(keys), accept);
    EXPECT_EQ(result.disposition, Disposition::error) << keys;
    EXPECT_NE(result.message.find("should have raised"), std::string::npos) << result.message;
  }
}

}  // namespace
}  // namespace kvrope::regress
