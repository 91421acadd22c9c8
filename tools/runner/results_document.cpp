#include "runner/results_document.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <filesystem>
#include <fstream>

#include "runner/build_info.h"
#include "runner/result_json.h"

namespace kvrope::regress {
namespace {

// What follows `key` and a colon on its line of a file of /proc, or nothing.
Json proc_field(const std::filesystem::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    size_t start = line.find_first_not_of(" \t", colon + 1);
    if (start != std::string::npos) return line.substr(start);
  }
  return nullptr;
}

Json gpu_name() {
  const std::filesystem::path folder = "/proc/driver/nvidia/gpus";
  std::error_code error;
  for (const auto& gpu : std::filesystem::directory_iterator(folder, error)) {
    return proc_field(gpu.path() / "information", "Model");
  }
  return nullptr;
}

Json driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  if (file >> version) return version;
  return nullptr;
}

Json describe_device(c10::Device device) {
  Json json;
  json["type"] = device.is_cuda() ? "cuda" : "cpu";
  json["name"] = device.is_cuda() ? gpu_name() : proc_field("/proc/cpuinfo", "model name");
  if (device.is_cpu()) json["threads"] = at::get_num_threads();
  return json;
}

}  // namespace

ResultsDocument::ResultsDocument(const std::vector<std::string>& arguments, c10::Device device) {
  Json meta;
  meta["version"] = kBuildVersion;
  meta["git_commit"] = *kBuildCommit ? Json(kBuildCommit) : Json(nullptr);
  meta["dirty"] = *kBuildCommit ? Json(kBuildIsDirty) : Json(nullptr);
  meta["arguments"] = arguments;
  meta["torch"] = TORCH_VERSION;
  meta["cuda"] = *kBuildCuda ? Json(kBuildCuda) : Json(nullptr);
  meta["driver"] = driver_version();
  document_["meta"] = meta;
  document_["device"] = describe_device(device);
  document_["results"] = Json::array();
}

void ResultsDocument::add(const CaseSpec& spec, const CaseResult& result, const Json& more) {
  Json json;
  json["name"] = spec.name;
  json["file"] = spec.file;
  json["tags"] = spec.tags;
  json["seed"] = spec.seed;
  json.update(to_json(result));
  json.update(more);
  document_["results"].push_back(json);
}

}  // namespace kvrope::regress
