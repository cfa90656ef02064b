from crosslingual_zoo.finetuning.align.command import main

main()
