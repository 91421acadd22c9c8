// kvrope-engine-step: a small serving engine on kvrope::cache_ops that checks itself.
#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "engine_step/run.h"

using namespace kvrope::engine;

constexpr int kExitMismatch = 1, kExitUsage = 2, kExitNoDevice = 3;
constexpr const char* kAbout =
    "Continuous batching of random requests. Attention of every token is compared with that of the whole "
    "sequence, computed without a cache.";
constexpr const char* kExitCodes =
    "Exit codes: 0 all as expected; 1 attention differs, or a block is lost or shared by accident; 2 usage; "
    "3 the asked-for device is missing.";

struct Names {
  std::string device = "auto", dtype = "bf16", style = "neox";
};

void add_options(CLI::App& app, RunOptions& options, Names& names) {
  const auto number = [&app](const char* name, int64_t& target, int64_t least, const char* help) {
    app.add_option(name, target, help)->check(CLI::Range(least, int64_t{1} << 30))->capture_default_str();
  };
  const auto choice = [&app](const char* name, std::string& target, std::vector<std::string> values,
                             const char* help) {
    app.add_option(name, target, help)->check(CLI::IsMember(values))->capture_default_str();
  };
  SchedulerConfig& scheduler = options.scheduler;
  ModelConfig& model = options.model;
  number("--steps", options.steps, 1, "Steps in which requests arrive; then those left are served");
  number("--seed", options.seed, 0, "Of requests, model and faults");
  choice("--device", names.device, {"auto", "cpu", "cuda"}, "auto takes CUDA where there is any");
  choice("--inject", options.inject, {"slot", "position", "block"},
         "Rows go beyond the cache or the rotary table, or have a wrong block, which must end in 1");
  choice("--dtype", names.dtype, {"fp16", "bf16", "fp32"}, "Of q, k and v");
  choice("--kv-cache-dtype", model.kv_cache_dtype, {"auto", "fp8_e4m3", "fp8_e5m2"},
         "Of the caches; auto is that of k");
  choice("--style", names.style, {"neox", "gptj"}, "How the dims of a head pair");
  number("--q-heads", model.q_heads, 1, "Query heads");
  number("--kv-heads", model.kv_heads, 1, "Key and value heads");
  number("--head-size", model.head_size, 2, "Dims of a head");
  number("--rotary-dim", model.rotary_dim, 2, "Dims of a head that are rotated");
  number("--block-size", scheduler.block_size, 1, "Tokens of a block");
  number("--blocks", scheduler.num_blocks, 1, "Of the full caches");
  number("--window-blocks", scheduler.num_window_blocks, 1, "Of the caches of window layers");
  number("--window", scheduler.window, 1, "Tokens that such a layer sees");
  number("--token-budget", scheduler.token_budget, 1, "Tokens of a step");
  number("--max-running", scheduler.max_running, 1, "Requests of a step");
  number("--max-length", scheduler.max_length, 8, "Tokens of a request");
}

bool has_cuda() {
#ifdef KVROPE_WITH_CUDA
  return at::hasCUDA();
#else
  return false;
#endif
}

int fail(const std::string& message, int exit_code) {
  std::fprintf(stderr, "kvrope-engine-step: %s\n", message.c_str());
  return exit_code;
}

int main(int argc, char** argv) {
  CLI::App app(kAbout, "kvrope-engine-step");
  app.footer(kExitCodes);
  RunOptions options;
  Names names;
  add_options(app, options, names);
  try {
    app.parse(argc, argv);
    if (names.device == "cuda" && !has_cuda()) {
      return fail("cuda: there is no CUDA device, or this build has the CPU kernel alone", kExitNoDevice);
    }
    const bool is_cuda = names.device == "cuda" || (names.device == "auto" && has_cuda());
    options.device = is_cuda ? c10::Device(at::kCUDA, 0) : c10::Device(at::kCPU);
    options.model.dtype = names.dtype == "fp16"   ? at::kHalf
                          : names.dtype == "bf16" ? at::kBFloat16
                                                  : at::kFloat;
    options.model.is_neox = names.style == "neox";
    const Statistics statistics = serve(options);
    std::fputs(report(options, statistics).c_str(), stdout);
    return statistics.num_complaints == 0 ? 0 : kExitMismatch;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  } catch (const c10::Error& error) {
    return fail(error.what_without_backtrace(), kExitUsage);
  } catch (const std::exception& error) {
    return fail(error.what(), kExitUsage);
  }
}
