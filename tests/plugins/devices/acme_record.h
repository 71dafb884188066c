// Recordings of the device "acme": library calls, copies and kernels as nodes over addresses, which a replay runs.
//
// A call that is recorded runs on meta tensors, which gives the layouts of its results; their memory is allocated, and
// nothing is computed.  A replay makes host tensors over the addresses that the node holds then, and calls the same
// operation on them.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <string>

#include "acme_memory.h"

namespace acme {

using Words = std::vector<uint64_t>;

struct Node {
  const char* kind;
  std::string name;
  Words words;       // addresses first, then other arguments
  size_t addresses;  // how many of them
  std::function<void(const uint64_t*)> run;
};

struct Recording {
  std::shared_ptr<Pool> pool;
  std::vector<Node> nodes;
  std::string failure;  // why it is of no use
};

inline thread_local std::unique_ptr<Recording> under_way;

// Refuses what cannot be recorded, and makes all of the recording void, whoever catches the error.
[[noreturn]] inline void refuse(const std::string& why) {
  if (under_way->failure.empty()) under_way->failure = why;
  TORCH_CHECK(false, why);
}

// While a recording is written anew: it, the next of its nodes, and why what is launched is not what it holds.
struct Rewriting {
  Recording* recording = nullptr;
  size_t next = 0;
  std::string refusal;
};
inline thread_local Rewriting rewriting;

// A launch takes the place of the next node, which has to be one of the same kernel; noise behind its words stays.
inline void rewrite(const std::string& name, const Words& words) {
  Rewriting& here = rewriting;
  if (!here.refusal.empty()) return;
  if (here.next == here.recording->nodes.size() || here.recording->nodes[here.next].name != name) {
    here.refusal = "acme: " + name + " is launched where something else was recorded";
    return;
  }
  std::copy(words.begin(), words.end(), here.recording->nodes[here.next++].words.begin());
}

inline bool noisy = false;  // nodes end in a word that nobody wrote, as structures with padding do

inline void add(const char* kind, std::string name, Words words, size_t addresses,
                std::function<void(const uint64_t*)> run) {
  static std::atomic<uint64_t> noise{1};
  if (noisy) words.push_back(noise += 0x9E3779B97F4A7C15);
  under_way->nodes.push_back({kind, std::move(name), std::move(words), addresses, std::move(run)});
}

inline void run_with(const Node& node, const uint64_t* words) {
  for (size_t n = 0; n < node.addresses; ++n)
    TORCH_CHECK(words[n] == 0 || owns(reinterpret_cast<void*>(words[n])), "illegal memory access: ", node.name,
                " was handed ", reinterpret_cast<void*>(words[n]), ", where there is no memory of acme's");
  node.run(words);
}

inline void replay(const Recording& recording) {
  for (const Node& node : recording.nodes) run_with(node, node.words.data());
}

// Neither gradients nor casts, and no mode of the caller's.
struct Plain {
  c10::impl::ExcludeDispatchKeyGuard keys{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::PythonDispatcher})};
};

template <class Each>
c10::IValue mapped(const c10::IValue& value, const Each& each) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(each(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& one : value.toTensorVector()) list.push_back(one.defined() ? each(one) : one);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> one : value.toOptionalTensorList())
      list.push_back(one.has_value() && one->defined() ? std::optional(each(*one)) : one);
    return list;
  }
  return value;
}

inline c10::IValue on_device(const c10::IValue& value, c10::DeviceType type) {
  return value.isDevice() && value.toDevice().type() != c10::kCPU ? c10::IValue(c10::Device(type)) : value;
}

inline at::Tensor with_bits_of(at::Tensor made, const at::Tensor& given) {
  made._set_conj(given.is_conj());
  made._set_neg(given.is_neg());
  return made;
}

inline at::Tensor meta_like(const at::Tensor& given) {
  return with_bits_of(at::empty_strided(given.sizes(), given.strides(), given.options().device(c10::kMeta)), given);
}

inline at::Tensor host_at(uint64_t address, const at::Tensor& layout) {
  void* memory = reinterpret_cast<void*>(address);
  return with_bits_of(
      at::from_blob(memory, layout.sizes(), layout.strides(), at::TensorOptions(layout.dtype()).device(c10::kCPU)), layout);
}

inline uint64_t address_of(const at::Tensor& tensor) { return reinterpret_cast<uint64_t>(tensor.const_data_ptr()); }

inline bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

inline void check_device(const at::Tensor& tensor, const std::string& name) {
  if (tensor.device().index() != under_way->pool->device)
    refuse("acme: " + name + " works on another device than the one that is recorded on");
}

// A call of an operation whose kernel for the host stands for the device's; its arguments come with the stack, which
// gets its results.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), name_(toString(op.operator_name())), stack_(stack) {
    arguments_ = torch::jit::pop(*stack, op.schema().arguments().size());
  }

  void record() {
    template_ = describe();
    torch::jit::Stack results = probe();
    take_over_sizes();
    for (const at::Tensor& given : given_) words_.push_back(address_of(given));
    for (size_t n = 0; n < results.size(); ++n) torch::jit::push(*stack_, given_or_made(n, results[n]));
    const bool clears = name_ == "aten::zero_" && is_dense(given_.at(0));
    const size_t addresses = words_.size();
    auto run = [op = op_, arguments = std::move(template_), made = std::move(made_), count = given_.size()](
                   const uint64_t* words) { replayed(op, arguments, made, words, words + count); };
    add(clears ? "clear" : "kernel", name_, std::move(words_), addresses, std::move(run));
  }

 private:
  torch::jit::Stack describe() {
    torch::jit::Stack described;
    for (const c10::IValue& argument : arguments_)
      described.push_back(mapped(on_device(argument, c10::kMeta), [this](const at::Tensor& given) {
        if (given.is_cpu() && given.dim() == 0) return given.clone();  // a number
        if (!given.is_privateuseone()) refuse("acme: " + name_ + " reads memory of the host, which cannot be recorded");
        check_device(given, name_);
        given_.push_back(given);
        metas_.push_back(meta_like(given));
        return metas_.back();
      }));
    return described;
  }

  torch::jit::Stack probe() {
    torch::jit::Stack stack = template_;
    // Kernels behind cummax, cummin and logcumsumexp that torch gives no kernel for meta tensors.
    if (op_.schema().returns().empty()) return {};
    if (name_ == "aten::_logcumsumexp") return {at::empty_like(metas_.at(0))};
    try {
      const Plain plain;
      op_.callBoxed(&stack);
    } catch (const std::exception& error) {
      refuse("acme: " + name_ + " cannot be recorded: nothing has run, and its result depends on values, or it has no "
             "kernel for meta tensors (" + std::string(error.what()).substr(0, 200) + ")");
    }
    return stack;
  }

  // What is written to may have got a size.
  void take_over_sizes() {
    for (size_t n = 0; n < given_.size(); ++n)
      if (given_[n].sizes() != metas_[n].sizes()) at::native::resize_(given_[n], metas_[n].sizes(), std::nullopt);
  }

  c10::IValue given_or_made(size_t n, const c10::IValue& result) {
    const auto* alias = op_.schema().returns().at(n).alias_info();
    if (alias != nullptr) {
      const auto& formal = op_.schema().arguments();
      for (size_t k = 0; k < formal.size(); ++k)
        if (formal[k].alias_info() != nullptr && *formal[k].alias_info() == *alias && alias->isWrite()) return arguments_[k];
      refuse("acme: " + name_ + " makes a view, which acme has no kernel for");
    }
    return mapped(result, [this](const at::Tensor& meta) {
      at::Tensor fresh = at::empty_strided(meta.sizes(), meta.strides(),
                                           meta.options().device(c10::Device(kAcme, under_way->pool->device)));
      words_.push_back(address_of(fresh));
      made_.push_back(meta);
      return fresh;
    });
  }

  // Operands with memory of their own take the place of those that the operation writes to; `back` says which.
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

  static torch::jit::Stack called(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, const uint64_t* given_at,
                                  Copies* back) {
    torch::jit::Stack stack;
    for (size_t n = 0; n < arguments.size(); ++n) {
      const auto* alias = op.schema().arguments()[n].alias_info();
      const bool copies = back != nullptr && alias != nullptr && alias->isWrite();
      stack.push_back(mapped(on_device(arguments[n], c10::kCPU), [&](const at::Tensor& layout) {
        if (!layout.is_meta()) return layout;
        at::Tensor there = host_at(*given_at++, layout);
        if (copies) back->emplace_back(there, there.clone());
        return copies ? back->back().second : there;
      }));
    }
    op.callBoxed(&stack);
    return stack;
  }

  static void replayed(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, const std::vector<at::Tensor>& made,
                       const uint64_t* given_at, const uint64_t* made_at) {
    const Plain plain;
    torch::jit::Stack stack;
    try {
      stack = called(op, arguments, given_at, nullptr);
    } catch (const c10::Error&) {  // some work in what they write to, and have it grow and shrink
      Copies back;
      stack = called(op, arguments, given_at, &back);
      for (auto& [there, own] : back) there.copy_(own);
    }
    size_t next = 0;
    for (size_t n = 0; n < stack.size(); ++n) {
      if (op.schema().returns().at(n).alias_info() != nullptr) continue;
      mapped(stack[n], [&](const at::Tensor& value) {
        const bool fits = value.sizes() == made.at(next).sizes();
        TORCH_CHECK(fits || n > 0, "acme: a replay gave a result of another size than recorded");
        if (fits) host_at(made_at[next], made[next]).copy_(value);  // others are for a device's own backward alone
        ++next;
        return value;
      });
    }
  }

  c10::OperatorHandle op_;
  std::string name_;
  torch::jit::Stack *stack_, template_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> given_, metas_, made_;
  Words words_;
};

inline void record_copy(const at::Tensor& source, const at::Tensor& target) {
  for (const at::Tensor& one : {source, target}) {
    if (!one.is_privateuseone()) refuse("acme: a copy between host and device cannot be recorded: it would have to be awaited");
    check_device(one, "a copy");
  }
  const bool bytes = source.dtype() == target.dtype() && source.strides() == target.strides() && is_dense(source) &&
                     source.sizes() == target.sizes() && source.is_conj() == target.is_conj() &&
                     source.is_neg() == target.is_neg();
  auto run = [from = meta_like(source), to = meta_like(target)](const uint64_t* words) {
    const Plain plain;
    host_at(words[1], to).copy_(host_at(words[0], from));
  };
  add(bytes ? "copy" : "kernel", "aten::copy_", {address_of(source), address_of(target)}, 2, std::move(run));
}

// A copy of bytes; how many is a word of the node.
inline void record_move(const char* name, const void* source, void* target, size_t bytes) {
  Words words = {reinterpret_cast<uint64_t>(source), reinterpret_cast<uint64_t>(target), bytes};
  if (rewriting.recording != nullptr) return rewrite(name, words);
  auto run = [](const uint64_t* words) {
    std::memmove(reinterpret_cast<void*>(words[1]), reinterpret_cast<void*>(words[0]), words[2]);
  };
  add("copy", name, std::move(words), 2, std::move(run));
}

template <class... Arguments>
torch::jit::Stack recorded(const char* op, const Arguments&... arguments) {
  torch::jit::Stack stack;
  torch::jit::push(stack, arguments...);
  Call(c10::Dispatcher::singleton().findSchemaOrThrow(op, ""), &stack).record();
  return stack;
}

}  // namespace acme
