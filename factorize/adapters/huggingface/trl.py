"""TRL's supervised fine-tuning with correlated noise: `pip install 'factorize[huggingface]' trl`."""

from trl import SFTTrainer

from factorize.adapters.huggingface.trainer import PrivateTraining


class PrivateSFTTrainer(PrivateTraining, SFTTrainer):
    """`trl.SFTTrainer` with correlated noise: an example is a row of `train_dataset`, which is never packed.

    Its loss is the mean of the cross entropy over an example's tokens, without those of the prompt if TRL leaves them
    out. See `factorize.adapters.huggingface.trainer.PrivateTraining`.
    """

    of_batches = SFTTrainer.compute_loss
