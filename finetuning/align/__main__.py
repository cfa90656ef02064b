from finetuning.align.command import main

main()
