// An autograd function of one's own under autocast: custom_fwd records the region, custom_bwd runs
// backward in it, wherever backward() is called.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A matrix product that squares its left side.
struct SquareMm : torch::autograd::Function<SquareMm> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x,
                               const torch::Tensor& w) {
    return torchamp::amp::custom_fwd(ctx, x.device(), [&] {
      ctx->save_for_backward({x, w});
      return torch::mm(x * x, w);
    });
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return torchamp::amp::custom_bwd(ctx, [&]() -> variable_list {
      const auto saved = ctx->get_saved_variables();
      const auto& x = saved[0];
      const auto& w = saved[1];
      // Listed ops cast both sides, so a bf16 gradient meets float32 weights without an error.
      return {2 * x * torch::mm(grads[0], w.t()), torch::mm((x * x).t(), grads[0])};
    });
  }
};

int main() {
  const auto x = torch::full({2, 2}, 3.0F).requires_grad_();
  const auto w = torch::ones({2, 2}).requires_grad_();
  torch::Tensor y;
  {
    torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
    y = SquareMm::apply(x, w);
  }
  y.sum().backward();  // outside of the region
  std::printf("forward in %s, gradients in %s\n", torch::toString(y.scalar_type()),
              torch::toString(x.grad().scalar_type()));
  const bool is_right = torch::equal(x.grad(), torch::full({2, 2}, 12.0F)) &&
                        torch::equal(w.grad(), torch::full({2, 2}, 18.0F));
  return y.scalar_type() == torch::kBFloat16 && is_right ? 0 : 1;
}
