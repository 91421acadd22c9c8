#include "check_arguments.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "mrope.cuh"
#include "overlap.h"
#include "tensor_matcher.h"
#include "text.h"

namespace kvrope {
namespace {

using at::Tensor;

bool is_fp8(at::ScalarType type) {
  return type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2;
}

// The sizes of a call, named as in arguments.h.
struct Sizes {
  Size T{"T"}, Tk{"Tk"}, QH{"QH"}, KH{"KH"}, D{"D"}, Dv{"Dv"};
  Size NB{"num_blocks"}, BS{"block_size"};
};

class Checker {
 public:
  Checker(const FusedArguments& args, Operation operation)
      : args_(args),
        rotates_(rotates(operation)),
        writes_cache_(writes_cache(operation)),
        has_k_(operation != Operation::rope || args.k.defined()),
        match_(name_of(operation), rotates_ ? "q" : "k", rotates_ ? args.q : args.k) {}

  void check() {
    if (rotates_) check_queries();
    if (has_k_) check_keys();
    if (writes_cache_) check_cache_write();
    if (rotates_) {
      check_positions();
      check_rotation();
      check_mrope();
      check_norm();
    }
    if (writes_cache_ && args_.apply_scale) {  // otherwise the scales are ignored, their form too
      check_scale("k_scale", args_.k_scale);
      check_scale("v_scale", args_.v_scale);
    }
    if (rotates_) check_outputs();
  }

 private:
  template <typename... Parts>
  void require(bool condition, const char* argument, const Parts&... parts) const {
    TORCH_CHECK_VALUE(condition, text(match_.prefix(argument), parts...));
  }

  // The tensor that is looked at first says the dtype, the head size and, without others, the rows of a call.
  void check_first(const char* argument, const Tensor& tensor, Size& rows, Size& heads) {
    match_.shape(argument, tensor, {&rows, &heads, &s_.D});
    match_.dtype(argument, tensor, {at::kHalf, at::kBFloat16, at::kFloat});
    const c10::SymInt& head_size = s_.D.value();
    require(head_size >= 2 && head_size <= kMaxHeadSize && head_size % 2 == 0, argument,
            "expected an even head size from 2 to ", kMaxHeadSize, ", got ", head_size);
  }

  void check_row_count(const char* argument, const c10::SymInt& rows) const {
    require(rows <= kMaxRows, argument, "expected at most ", kMaxRows, " rows, got ", rows);
  }

  void check_queries() {
    check_first("q", args_.q, s_.T, s_.QH);
    const c10::SymInt& heads = s_.QH.value();
    require(heads >= 1 && heads <= kMaxHeads, "q", "expected 1 to ", kMaxHeads, " heads, got ", heads);
    if (!has_k_) check_row_count("q", s_.T.value());
  }

  void check_keys() {
    if (rotates_) {
      match_.shape("k", args_.k, {&s_.Tk, &s_.KH, &s_.D});
      match_.dtype("k", args_.k, {args_.q.scalar_type()});
      require(s_.Tk.value() >= s_.T.value(), "k", "expected at least as many rows as q, ", s_.T.value(),
              ", got ", s_.Tk.value());
    } else {
      check_first("k", args_.k, s_.Tk, s_.KH);
    }
    check_row_count("k", s_.Tk.value());
    const c10::SymInt& kv_heads = s_.KH.value();
    require(kv_heads >= 1 && kv_heads <= kMaxHeads / 2, "k", "expected 1 to ", kMaxHeads / 2, " heads, got ",
            kv_heads);
    if (!rotates_) return;
    require(s_.QH.value() % kv_heads == 0, "k", "expected a number of heads that divides the ", s_.QH.value(),
            " of q, got ", kv_heads);
  }

  void check_cache_write() {
    match_.shape("v", args_.v, {&s_.Tk, &s_.KH, &s_.Dv});
    match_.dtype("v", args_.v, {args_.k.scalar_type()});
    require(s_.Dv.value() >= 1 && s_.Dv.value() <= kMaxHeadSize, "v", "expected a head size from 1 to ",
            kMaxHeadSize, ", got ", s_.Dv.value());
    if (args_.flash_layout) {
      check_flash_caches();
    } else {
      check_split_caches();
    }
    check_cache_dtypes();
    check_slots();
  }

  void check_flash_caches() {
    match_.shape("key_cache", args_.key_cache, {&s_.NB, &s_.BS, &s_.KH, &s_.D});
    require(s_.BS.value() >= 1, "key_cache", "expected a block_size of at least 1, got ", s_.BS.value());
    match_.shape("value_cache", args_.value_cache, {&s_.NB, &s_.BS, &s_.KH, &s_.Dv});
  }

  void check_split_caches() {
    Size groups{"D/x"}, x{"x"};
    match_.shape("key_cache", args_.key_cache, {&s_.NB, &s_.KH, &groups, &s_.BS, &x});
    require(s_.BS.value() >= 1, "key_cache", "expected a block_size of at least 1, got ", s_.BS.value());
    bool is_power_of_two = false;
    for (int64_t power = 1; power <= kMaxHeadSize; power *= 2) is_power_of_two |= x.value() == power;
    require(is_power_of_two && groups.value() * x.value() == s_.D.value(), "key_cache",
            "expected shape (num_blocks, KH, D/x, block_size, x) with D=", s_.D.value(),
            " and x a power of two that divides it, got ", args_.key_cache.sym_sizes());

    const Tensor& value_cache = args_.value_cache;
    if (value_cache.defined() && value_cache.dim() == 5) {
      require(s_.BS.value() % x.value() == 0, "value_cache", "expected rank 4, since x=", x.value(),
              " of key_cache does not divide block_size=", s_.BS.value(), ", got ", value_cache.sym_sizes());
      Size chunks{"block_size/x", s_.BS.value() / x.value()};
      match_.shape("value_cache", value_cache, {&s_.NB, &s_.KH, &chunks, &s_.Dv, &x});
    } else {
      match_.shape("value_cache", value_cache, {&s_.NB, &s_.KH, &s_.Dv, &s_.BS});
    }
  }

  void check_cache_dtypes() const {
    const std::string& name = args_.kv_cache_dtype;
    if (name == "auto") {
      match_.dtype("key_cache", args_.key_cache,
                   {args_.k.scalar_type(), at::kFloat8_e4m3fn, at::kFloat8_e5m2});
    } else if (name == "fp8" || name == "fp8_e4m3") {
      match_.dtype("key_cache", args_.key_cache, {at::kFloat8_e4m3fn, at::kByte});
    } else if (name == "fp8_e5m2") {
      match_.dtype("key_cache", args_.key_cache, {at::kFloat8_e5m2, at::kByte});
    } else {
      require(false, "kv_cache_dtype", "expected \"auto\", \"fp8\", \"fp8_e4m3\" or \"fp8_e5m2\", got \"",
              name, "\"");
    }
    match_.dtype("value_cache", args_.value_cache, {args_.key_cache.scalar_type()});
    check_takes_no_gradient("key_cache", args_.key_cache);
    check_takes_no_gradient("value_cache", args_.value_cache);
  }

  void check_index(const char* argument, const Tensor& tensor, Size& size) const {
    match_.shape(argument, tensor, {&size});
    match_.dtype(argument, tensor, {at::kInt, at::kLong});
  }

  // As torch's own out= arguments: what is overwritten has no gradient of its own.
  void check_takes_no_gradient(const char* argument, const Tensor& tensor) const {
    require(!c10::GradMode::is_enabled() || !tensor.requires_grad(), argument,
            "is written, and no gradient flows through the call: expected torch.no_grad() or a tensor that "
            "does not require grad, got one that does");
  }

  void check_slots() {
    Size slots{"T_slot"};
    check_index("slot_mapping", args_.slot_mapping, slots);
    require(slots.value() <= s_.Tk.value(), "slot_mapping", "expected at most as many slots as rows of k, ",
            s_.Tk.value(), ", got ", slots.value());
    if (args_.swa_slot_mapping) {
      Size window{"N"};
      check_index("swa_slot_mapping", *args_.swa_slot_mapping, window);
    }
  }

  void check_positions() {
    if (args_.mrope_section && args_.pos.defined() && args_.pos.dim() != 1) {
      require(args_.pos.dim() == 2, "pos", "expected shape (T=", s_.T.value(),
              ",) or (axes=3, T=", s_.T.value(), "), got ", args_.pos.sym_sizes());
      Size axes{"axes", kNumAxes};
      match_.shape("pos", args_.pos, {&axes, &s_.T});
      match_.dtype("pos", args_.pos, {at::kInt, at::kLong});
    } else {
      check_index("pos", args_.pos, s_.T);
    }
    if (args_.offs) check_index("offs", *args_.offs, s_.T);
  }

  void check_rotation() {
    const c10::SymInt head_size = s_.D.value();
    const c10::SymInt rotary_dim = args_.rotary_dim ? c10::SymInt(*args_.rotary_dim) : head_size;
    require(rotary_dim >= 2 && rotary_dim <= head_size && rotary_dim % 2 == 0, "rotary_dim",
            "expected an even number from 2 to the head size ", head_size, ", got ", rotary_dim);
    require(args_.rotary_dim_offset >= 0 && args_.rotary_dim_offset <= head_size - rotary_dim,
            "rotary_dim_offset", "expected 0 to ", head_size - rotary_dim, " (head size ", head_size,
            " - rotary_dim ", rotary_dim, "), got ", args_.rotary_dim_offset);

    Size positions{"P"}, width{"W"};
    match_.shape("cos_sin", args_.cos_sin, {&positions, &width});
    match_.dtype("cos_sin", args_.cos_sin, {at::kFloat, at::kHalf, at::kBFloat16});
    require(width.value() == rotary_dim || width.value() == 2 * rotary_dim, "cos_sin", "expected width ",
            rotary_dim, " or ", 2 * rotary_dim, " for rotary_dim ", rotary_dim,
            args_.rotary_dim ? "" : " (the head size, since rotary_dim is not given)", ", got ",
            width.value());
  }

  void check_mrope() const {
    require(args_.mrope_section || !args_.mrope_interleaved, "mrope_interleaved",
            "expected False, since there is no mrope_section, got True");
    if (!args_.mrope_section) return;
    const std::vector<c10::SymInt> sizes(args_.mrope_section->begin(), args_.mrope_section->end());
    const c10::SymInt num_frequencies =
        args_.rotary_dim ? c10::SymInt(*args_.rotary_dim / 2) : s_.D.value() / 2;
    c10::SymInt sum = 0;
    bool fits = sizes.size() == kNumAxes;
    for (const c10::SymInt& size : sizes) {
      fits = fits && size >= 0 && size <= kMaxHeadSize;  // no sum of these overflows
      if (fits) sum = sum + size;
    }
    require(fits && sum == num_frequencies, "mrope_section",
            "expected three sizes of at least 0 with sum rotary_dim / 2 = ", num_frequencies, ", got ",
            c10::SymIntArrayRef(sizes));
  }

  void check_weight(const char* argument, const Tensor& weight) {
    match_.shape(argument, weight, {&s_.D});
    if (args_.q.scalar_type() == at::kFloat) {
      match_.dtype(argument, weight, {at::kFloat});
    } else {
      match_.dtype(argument, weight, {args_.q.scalar_type(), at::kFloat});
    }
  }

  void check_norm() {
    if (args_.q_weight) check_weight("q_weight", *args_.q_weight);
    require(has_k_ || !args_.k_weight, "k_weight", "expected none, since there is no k, got one");
    if (args_.k_weight) check_weight("k_weight", *args_.k_weight);
    const bool is_normed = args_.q_weight || args_.k_weight;
    require(is_normed || !args_.weight_plus_one, "weight_plus_one",
            "expected False, since there is neither q_weight nor k_weight, got True");
    const bool fits = args_.eps >= 0 && std::isfinite(static_cast<float>(args_.eps));
    require(fits, "eps", "expected a finite number of at least 0, got ", args_.eps);
  }

  void check_scale(const char* argument, const std::optional<Tensor>& scale) {
    if (!scale) return;
    const bool is_one = scale->defined() && scale->dim() == 0;
    const bool is_list = scale->defined() && scale->dim() == 1;
    const bool fits =
        is_one || (is_list && (scale->sym_size(0) == 1 || (has_k_ && scale->sym_size(0) == s_.KH.value())));
    if (!fits) {
      const std::string heads = has_k_ ? text(", (1,) or (KH=", s_.KH.value(), ",)") : " or (1,), without k";
      require(false, argument, "expected shape ()", heads, ", got ",
              scale->defined() ? shape_text(*scale) : "an undefined tensor");
    }
    Size any{"KH"};
    is_one ? match_.shape(argument, *scale, {}) : match_.shape(argument, *scale, {&any});
    match_.dtype(argument, *scale, {at::kFloat});
  }

  void check_query_scale() {
    if (!args_.q_scale) return;
    const at::ScalarType type = args_.q_out->scalar_type();
    if (!is_fp8(type)) {
      require(false, "q_scale", "expected none, since q_out is ", dtype_name(type), " and no fp8, got one");
    }
    check_scale("q_scale", args_.q_scale);
  }

  void check_output(const char* argument, const std::optional<Tensor>& output,
                    std::initializer_list<Size*> sizes, std::initializer_list<at::ScalarType> dtypes) const {
    const Tensor none;
    const Tensor& tensor = output ? *output : none;
    match_.shape(argument, tensor, sizes);
    match_.dtype(argument, tensor, dtypes);
    check_takes_no_gradient(argument, tensor);
  }

  void check_outputs() {
    const at::ScalarType dtype = args_.q.scalar_type();
    check_output("q_out", args_.q_out, {&s_.T, &s_.QH, &s_.D}, {dtype, at::kFloat8_e4m3fn, at::kFloat8_e5m2});
    check_query_scale();
    if (writes_cache_) check_row_view();  // rope alone returns q_out as it is
    require(has_k_ || !args_.k_out, "k_out", "expected none, since there is no k, got one");
    if (has_k_) check_output("k_out", args_.k_out, {&s_.Tk, &s_.KH, &s_.D}, {dtype});
    if (args_.zeros_out) check_output("zeros_out", args_.zeros_out, {&s_.T, &s_.QH, &s_.D}, {dtype});
  }

  // A row of heads must be one run of evenly spaced elements, or (T, QH * D) is no view of it.
  void check_row_view() const {
    const Tensor& q_out = *args_.q_out;
    const bool is_viewable =
        s_.QH.value() == 1 || q_out.sym_stride(1) == s_.D.value() * q_out.sym_stride(2) || s_.T.value() == 0;
    require(is_viewable, "q_out",
            "expected strides that allow a view as (T, QH * D): head stride = D * last stride, "
            "got strides ",
            q_out.sym_strides());
  }

  const FusedArguments& args_;
  const bool rotates_, writes_cache_, has_k_;
  TensorMatcher match_;
  Sizes s_;
};

}  // namespace

void check_arguments(const FusedArguments& args, Operation operation) {
  Checker(args, operation).check();
}

void check_no_overlap(const FusedArguments& args, Operation operation) {
  using NamedTensors = c10::SmallVector<NamedTensor, 13>;
  NamedTensors written, read;
  const auto add = [](NamedTensors& to, const char* name, const Tensor& tensor) {
    if (tensor.defined()) to.push_back({name, &tensor});
  };
  const auto add_if = [&](NamedTensors& to, const char* name, const std::optional<Tensor>& tensor) {
    if (tensor) add(to, name, *tensor);
  };
  add(written, "key_cache", args.key_cache);
  add(written, "value_cache", args.value_cache);
  add_if(written, "q_out", args.q_out);
  add_if(written, "k_out", args.k_out);
  add_if(written, "zeros_out", args.zeros_out);

  add(read, "q", args.q);
  add(read, "k", args.k);
  add(read, "v", args.v);
  add(read, "slot_mapping", args.slot_mapping);
  add(read, "pos", args.pos);
  add(read, "cos_sin", args.cos_sin);
  if (args.apply_scale) add_if(read, "k_scale", args.k_scale);
  if (args.apply_scale) add_if(read, "v_scale", args.v_scale);
  add_if(read, "offs", args.offs);
  add_if(read, "swa_slot_mapping", args.swa_slot_mapping);
  add_if(read, "q_scale", args.q_scale);
  add_if(read, "q_weight", args.q_weight);
  add_if(read, "k_weight", args.k_weight);

  require_no_overlap(name_of(operation), written, read, {{"q_out", "q"}, {"k_out", "k"}});
}

}  // namespace kvrope
