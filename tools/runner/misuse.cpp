#include "runner/misuse.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <stdexcept>

#include "runner/object_reader.h"

namespace kvrope::regress {
namespace {

const std::vector<std::pair<std::string, Misuse::Fault>> kFaults = {
    {"dtype", Misuse::Fault::dtype},     {"rank", Misuse::Fault::rank},
    {"rows", Misuse::Fault::rows},       {"device", Misuse::Fault::device},
    {"missing", Misuse::Fault::missing}, {"self_overlap", Misuse::Fault::self_overlap},
    {"shared", Misuse::Fault::shared}};

const std::vector<std::pair<std::string, std::string>> kTensors = [] {
  std::vector<std::pair<std::string, std::string>> names;
  for (const char* name :
       {"q", "k", "v", "key_cache", "value_cache", "slot_mapping", "swa_slot_mapping", "pos", "offs",
        "cos_sin", "k_scale", "v_scale", "q_scale", "q_weight", "k_weight", "q_out", "k_out", "zeros_out"}) {
    names.emplace_back(name, name);
  }
  return names;
}();

at::Tensor& find(const std::string& name, FusedArguments& args) {
  const std::pair<const char*, at::Tensor*> required[] = {{"q", &args.q},
                                                          {"k", &args.k},
                                                          {"v", &args.v},
                                                          {"key_cache", &args.key_cache},
                                                          {"value_cache", &args.value_cache},
                                                          {"slot_mapping", &args.slot_mapping},
                                                          {"pos", &args.pos},
                                                          {"cos_sin", &args.cos_sin}};
  for (const auto& [its_name, tensor] : required) {
    if (name == its_name) return *tensor;
  }
  const std::pair<const char*, std::optional<at::Tensor>*> optional[] = {
      {"swa_slot_mapping", &args.swa_slot_mapping},
      {"offs", &args.offs},
      {"k_scale", &args.k_scale},
      {"v_scale", &args.v_scale},
      {"q_scale", &args.q_scale},
      {"q_weight", &args.q_weight},
      {"k_weight", &args.k_weight},
      {"q_out", &args.q_out},
      {"k_out", &args.k_out},
      {"zeros_out", &args.zeros_out}};
  for (const auto& [its_name, tensor] : optional) {
    if (name == its_name && *tensor) return **tensor;
  }
  throw std::invalid_argument("misuse: this call is not given a tensor " + name);
}

// Both anew, of zeros, from the start of one allocation on.
void share_memory(at::Tensor& first, at::Tensor& second) {
  auto bytes = static_cast<int64_t>(std::max(first.nbytes(), second.nbytes()));
  bytes = (bytes + 7) / 8 * 8;  // any dtype divides it
  at::Tensor memory = at::zeros({bytes}, first.options().dtype(at::kByte));
  auto placed = [&](const at::Tensor& tensor) {
    return memory.view(tensor.scalar_type()).slice(0, 0, tensor.numel()).view(tensor.sizes());
  };
  first = placed(first);
  second = placed(second);
}

at::Tensor with_one_row_more(const at::Tensor& tensor) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  if (sizes.empty()) throw std::invalid_argument("misuse: a tensor of shape () has no rows");
  ++sizes.front();
  return at::zeros(sizes, tensor.options());
}

}  // namespace

Misuse read_misuse(const ObjectReader& reader) {
  Misuse misuse;
  reader.choice("tensor", kTensors, misuse.tensor);
  reader.choice("fault", kFaults, misuse.fault);
  reader.choice("with", kTensors, misuse.with);
  if (!reader.find("tensor")) reader.reject("tensor", "the name of an argument");
  if (!reader.find("fault")) reader.reject("fault", "what is wrong with the tensor");
  bool is_shared = misuse.fault == Misuse::Fault::shared;
  if (is_shared && misuse.with.empty()) reader.reject("with", "the tensor that the memory is shared with");
  if (!is_shared && !misuse.with.empty()) reader.reject("with", "left out where fault is not \"shared\"");
  return misuse;
}

void apply_misuse(const Misuse& misuse, FusedArguments& arguments) {
  at::Tensor& tensor = find(misuse.tensor, arguments);
  switch (misuse.fault) {
    case Misuse::Fault::dtype:
      tensor = at::zeros(tensor.sizes(), tensor.options().dtype(at::kDouble));
      break;
    case Misuse::Fault::rank:
      tensor = tensor.unsqueeze(0).unsqueeze(0);
      break;
    case Misuse::Fault::rows:
      tensor = with_one_row_more(tensor);
      break;
    case Misuse::Fault::device:
      tensor = at::empty(tensor.sizes(), tensor.options().device(at::kMeta));
      break;
    case Misuse::Fault::missing:
      tensor = at::Tensor();
      break;
    case Misuse::Fault::self_overlap:
      tensor = at::zeros({1}, tensor.options())
                   .as_strided(tensor.sizes(), std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0));
      break;
    case Misuse::Fault::shared:
      share_memory(tensor, find(misuse.with, arguments));
      break;
  }
}

}  // namespace kvrope::regress
