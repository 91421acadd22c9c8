// Strides and offsets of single tensors: what the file may say, and that the call gets them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fault.h"
#include "runner/call_buffers.h"
#include "runner/case_file.h"
#include "runner/json_document.h"
#include "runner/run_case.h"

namespace kvrope::regress {
namespace {

CaseSpec parse_one(const std::string& keys) {
  return parse_case_file(R"({"schema_version": 1, "cases": [{"id": "a", )" + keys + "}]}", "test.json").at(0);
}

std::string error_of(const std::string& keys) {
  try {
    parse_one(keys);
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

std::string strides_error(const std::string& strides) {
  return error_of(R"("inputs": {"strides": )" + strides + "}");
}

FusedArguments arguments_of(const CaseSpec& spec) {
  return CallBuffers(spec, make_call_data(spec), c10::kCPU).arguments();
}

int64_t misalignment(const at::Tensor& tensor) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64);
}

TEST(CaseFileStrides, EveryTensorGetsItsOwn) {
  CaseSpec spec = parse_one(R"("head_dim": 8, "num_tokens": 3, "num_blocks": 2, "block_size": 4, "q_heads": 2,
      "positions": {"offsets": {"value": 1}}, "outputs": {"zeros_out": true},
      "slots": {"swa": {"values": [0, 1, 2, 3]}},
      "inputs": {"strides": {
        "q": {"strides": [40, 20, 2], "offset": 1}, "k": {"offset": 3}, "v": {"strides": [8, 24, 1]},
        "cos_sin": {"strides": [10, 1]}, "q_out": {"strides": [17, 8, 1]}, "k_out": {"strides": [8, 24, 1], "offset": 5},
        "zeros_out": {"strides": [1, 3, 6]}, "key_cache": {"strides": [100, 20, 10, 1], "offset": 7},
        "value_cache": {"strides": [64, 8, 32, 1]}, "slot_mapping": {"strides": [2]}, "pos": {"offset": 1},
        "offs": {"strides": [3], "offset": 2}, "swa_slot_mapping": {"strides": [2], "offset": 1}}})");
  CallData data = make_call_data(spec);
  CallBuffers buffers(spec, data, c10::kCPU);
  const FusedArguments& args = buffers.arguments();
  EXPECT_EQ(args.q.strides(), (at::IntArrayRef{40, 20, 2}));
  EXPECT_EQ(misalignment(args.q), 2);
  EXPECT_EQ(args.k.strides(), (at::IntArrayRef{16, 8, 1}));
  EXPECT_EQ(misalignment(args.k), 6);
  EXPECT_EQ(args.v.strides(), (at::IntArrayRef{8, 24, 1}));
  EXPECT_EQ(args.cos_sin.strides(), (at::IntArrayRef{10, 1}));
  EXPECT_EQ(args.q_out->strides(), (at::IntArrayRef{17, 8, 1}));
  EXPECT_EQ(args.k_out->strides(), (at::IntArrayRef{8, 24, 1}));
  EXPECT_EQ(misalignment(*args.k_out), 10);
  EXPECT_EQ(args.zeros_out->strides(), (at::IntArrayRef{1, 3, 6}));
  EXPECT_EQ(args.key_cache.strides(), (at::IntArrayRef{100, 20, 10, 1}));
  EXPECT_EQ(misalignment(args.key_cache), 14);
  EXPECT_EQ(args.value_cache.strides(), (at::IntArrayRef{64, 8, 32, 1}));
  EXPECT_EQ(args.slot_mapping.strides(), (at::IntArrayRef{2}));
  EXPECT_EQ(misalignment(args.pos), 8);
  EXPECT_EQ(args.offs->strides(), (at::IntArrayRef{3}));
  EXPECT_EQ(args.swa_slot_mapping->strides(), (at::IntArrayRef{2}));
  EXPECT_EQ(misalignment(*args.swa_slot_mapping), 4);
  EXPECT_EQ(args.q[2][1][7].item<float>(), data.q.at(2 * 16 + 8 + 7));
  CaseResult result = run_case(spec, c10::kCPU, fused_qk_rope_reshape_and_cache);
  EXPECT_EQ(result.disposition, Disposition::passed) << result.message;
}

TEST(CaseFileStrides, PositionsOfSeveralAxesHaveAStrideForEach) {
  const std::string mrope = R"("num_tokens": 4, "mrope": {"section": [8, 12, 12]}, "inputs": {"strides": )";
  auto strides_of = [&](const std::string& strides) {
    CaseSpec spec = parse_one(mrope + strides + "}");
    FusedArguments args = arguments_of(spec);
    std::vector<std::vector<int64_t>> pos = plan_rows(spec).pos;
    for (int64_t axis = 0; axis < 3; ++axis) {
      for (int64_t i = 0; i < 4; ++i)
        EXPECT_EQ(args.pos[axis][i].item<int64_t>(), pos[static_cast<size_t>(axis)][static_cast<size_t>(i)]);
    }
    EXPECT_EQ(run_case(spec, c10::kCPU, fused_qk_rope_reshape_and_cache).disposition, Disposition::passed);
    return args.pos.strides().vec();
  };
  using Strides = std::vector<int64_t>;
  EXPECT_EQ(strides_of(R"("contiguous")"), (Strides{4, 1}));
  EXPECT_EQ(strides_of(R"("odd_offset")"), (Strides{5, 1}));
  EXPECT_EQ(strides_of(R"("transposed")"), (Strides{2, 6}));
  EXPECT_EQ(strides_of(R"({"pos": {"strides": [1, 3], "offset": 2}})"), (Strides{1, 3}));
  EXPECT_EQ(error_of(mrope + R"({"pos": {"strides": [1]}}})"),
            "/cases/0/inputs/strides/pos/strides: must have 2 strides, got 1");
  EXPECT_EQ(error_of(mrope + R"({"pos": {"strides": [3, 1]}}})"),
            "/cases/0/inputs/strides/pos/strides: must keep the elements of an input apart");
}

// A write to another slot than the strides say is seen.
TEST(CaseFileStrides, CachesAreComparedThroughTheirStrides) {
  for (const char* layout : {"flash_nhd", "x_split"}) {
    std::string strides = layout[0] == 'f' ? "[3000, 128, 64, 1]" : "[3000, 1024, 128, 8, 1]";
    CaseSpec spec = parse_one(R"("slots": {"pattern": "random"}, "layout": ")" + std::string(layout) +
                              R"(", "inputs": {"strides": {"key_cache": {"strides": )" + strides + "}}}");
    auto shifted = [](const FusedArguments& given) {
      FusedArguments args = given;
      args.slot_mapping = (given.slot_mapping + 1) % (given.key_cache.size(0) * 16);
      FusedOutputs outputs = fused_qk_rope_reshape_and_cache(args);
      return outputs;
    };
    EXPECT_EQ(run_case(spec, c10::kCPU, fused_qk_rope_reshape_and_cache).disposition, Disposition::passed);
    EXPECT_EQ(run_case(spec, c10::kCPU, shifted).disposition, Disposition::failed);
  }
}

TEST(CaseFileStrides, PackedPagesComeApartWhenACacheHasItsOwn) {
  CaseSpec spec = parse_one(
      R"("layout": "packed_kv", "inputs": {"strides": {"value_cache": {"strides": [5000, 128, 64, 1]}}})");
  EXPECT_EQ(arguments_of(spec).value_cache.stride(0), 5000);
  CaseResult result = run_case(spec, c10::kCPU, fused_qk_rope_reshape_and_cache);
  EXPECT_EQ(result.disposition, Disposition::passed) << result.message;
}

TEST(CaseFileStrides, LaterLayersAddTensorsAndAKindDropsThem) {
  auto cases = parse_case_file(R"({"schema_version": 1,
      "defaults": {"inputs": {"strides": {"q": {"offset": 1}}}},
      "cases": [{"id": "a", "inputs": {"strides": {"k": {"offset": 2}}}},
                {"id": "b", "inputs": {"strides": "fused_qkv"}},
                {"id": "c", "sweep": {"inputs.strides.q.offset": [3]}}]})",
                               "test.json");
  EXPECT_EQ(cases[0].inputs.tensors.size(), 2u);
  EXPECT_TRUE(cases[1].inputs.tensors.empty());
  EXPECT_EQ(cases[1].inputs.strides, InputsSpec::Strides::fused_qkv);
  EXPECT_EQ(cases[2].inputs.tensors.at("q").offset, 3);
}

TEST(CaseFileStrides, ErrorsNameTheKey) {
  EXPECT_EQ(strides_error("7").substr(0, 31), "/cases/0/inputs/strides: must b");
  EXPECT_EQ(strides_error(R"("diagonal")").substr(0, 42), "/cases/0/inputs/strides: must be one of \"c");
  EXPECT_EQ(strides_error(R"({"keys": {}})").substr(0, 42), "/cases/0/inputs/strides/keys: unknown key,");
  EXPECT_EQ(strides_error(R"({"q": [1, 2, 3]})"),
            "/cases/0/inputs/strides/q: must be an object, got [1,2,3]");
  EXPECT_EQ(strides_error(R"({"q": {"stride": [1]}})").substr(0, 40),
            "/cases/0/inputs/strides/q/stride: unknow");
  EXPECT_EQ(strides_error(R"({"q": {"offset": -1}})"),
            "/cases/0/inputs/strides/q/offset: must be a non-negative integer, got -1");
  EXPECT_EQ(strides_error(R"({"q": {"strides": [512, -64, 1]}})").substr(0, 51),
            "/cases/0/inputs/strides/q/strides: must be a list, ");
  EXPECT_EQ(strides_error(R"({"q": {"strides": [64, 1]}})"),
            "/cases/0/inputs/strides/q/strides: must have 3 strides, got 2");
  EXPECT_EQ(strides_error(R"({"key_cache": {"strides": [1, 2, 3, 4, 5]}})"),
            "/cases/0/inputs/strides/key_cache/strides: must have 4 strides, got 5");
  EXPECT_EQ(strides_error(R"({"k": {"strides": [0, 64, 1]}})"),
            "/cases/0/inputs/strides/k/strides: must keep the elements of an input apart");
  EXPECT_EQ(strides_error(R"({"offs": {"strides": [2]}})"),
            "/cases/0/inputs/strides/offs: belongs to a tensor that the call is not given");
  EXPECT_EQ(
      error_of(
          R"("q_out_dtype": "fp8_e4m3", "inputs": {"strides": {"q_out": {"offset": 1}}, "in_place": true})"),
      "no error");
  EXPECT_EQ(strides_error(R"({"q_out": {"offset": 1}}, "in_place": true)"),
            "/cases/0/inputs/strides/q_out: belongs to a tensor that the call is not given");
}

TEST(CaseFileStrides, OutputsThatOverlapAreForTheOperationToRefuse) {
  CaseSpec spec = parse_one(
      R"("inputs": {"strides": {"q_out": {"strides": [0, 64, 1]}}}, "expect": {"error": "q_out: "})");
  EXPECT_EQ(run_case(spec, c10::kCPU, fused_qk_rope_reshape_and_cache).disposition,
            Disposition::rejected_as_expected);
}

TEST(CaseFileModel, IsReadAndChangesNothing) {
  CaseSpec spec =
      parse_one(R"("model": {"name": "m", "tensor_parallel": 2, "config": {"num_attention_heads": 32}})");
  EXPECT_EQ(spec.model->name, "m");
  EXPECT_EQ(spec.model->tensor_parallel, 2);
  EXPECT_EQ(spec.q_heads, 8);
  EXPECT_EQ(error_of(R"("model": {"tensor_parallel": 2})"),
            "/cases/0/model/name: must be a non-empty string, is missing");
  EXPECT_EQ(error_of(R"("model": {"name": "m", "tensor_parallel": 0})"),
            "/cases/0/model/tensor_parallel: must be a positive integer, got 0");
  EXPECT_EQ(error_of(R"("model": {"name": "m", "config": [1]})"),
            "/cases/0/model/config: must be an object with fields of the model's config.json, got [1]");
}

}  // namespace
}  // namespace kvrope::regress
